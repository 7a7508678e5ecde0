"""Processes of tools: supervised, reaped, and servers of many small ones."""
