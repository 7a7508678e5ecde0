"""Artifacts: where bytes come from, how they are verified, and where they stay."""
