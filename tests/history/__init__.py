"""Tests of what all runs together say."""
