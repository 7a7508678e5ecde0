"""Invoke tasks: parse options, call the engine, print."""
