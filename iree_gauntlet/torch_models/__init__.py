"""Models that torch makes: Python functions, and recipes over shapes; how they are built, checked and timed."""
