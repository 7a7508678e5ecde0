"""Maintenance of caches and specs, by records of runs."""
