"""What runs in the Python that has torch, beside the words that both sides read."""
