"""Synthetic weights for a program: its parameters found, values from a seed or one value, IRPA archives."""
