"""Shared test helpers: small projects, servers with faults, synthetic records, fake tools."""
