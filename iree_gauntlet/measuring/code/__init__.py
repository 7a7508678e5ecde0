"""The machine code of a module's dispatches, read from the module's bytes."""
