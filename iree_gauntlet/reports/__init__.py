"""From the journal to everything that people and machines read."""
