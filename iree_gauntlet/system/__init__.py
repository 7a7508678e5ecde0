"""Operating-system helpers: atomic files, locks, short-lived processes."""
