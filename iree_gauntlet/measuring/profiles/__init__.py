"""Rows of benchmarks, dispatches and profiles, and what changed in them."""
