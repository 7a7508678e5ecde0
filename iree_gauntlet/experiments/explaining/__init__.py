"""The explanation of a failure: it is repeated, located, extracted and bundled."""
