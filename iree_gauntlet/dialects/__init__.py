"""Conversion of spec files to cases: one module for each dialect, and the folders of specs."""
