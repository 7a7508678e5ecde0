"""Models that torch makes (from Python functions, or recipes over shapes), and their build, check and timing."""
