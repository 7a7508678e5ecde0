"""Rounds as evidence: intervals, sequential verdicts, false discoveries."""
