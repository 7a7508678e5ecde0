"""Experiments: each chooses the subjects, variants and order of measurements, and judges the results."""
