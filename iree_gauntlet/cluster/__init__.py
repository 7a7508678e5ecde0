"""Runs on many machines: Dask starts steps there and detects lost machines; plan and record stay on this machine."""
