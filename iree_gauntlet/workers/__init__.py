"""Scripts that run in another Python."""
