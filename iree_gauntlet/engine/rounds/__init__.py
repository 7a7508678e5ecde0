"""Rounds of what is timed, in blocks, while nobody else measures."""
