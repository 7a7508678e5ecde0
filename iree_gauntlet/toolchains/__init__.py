"""Which IREE: find it, identify it, and know what it understands."""
