"""Spec files → cases: one module a dialect, and the trees that hold them."""
