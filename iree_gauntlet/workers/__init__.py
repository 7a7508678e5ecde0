"""What runs in another Python."""
