"""Comparing outputs, benchmark samples, goldens, and the machine that they were measured on."""
