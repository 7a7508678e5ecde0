"""Artifacts: their sources, their verification, and their storage."""
