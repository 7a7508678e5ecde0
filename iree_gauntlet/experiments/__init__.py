"""Experiments: which subjects on which variants, in which order, judged how."""
