"""Compiled modules: their keys, their cache, and compiling many at once."""
