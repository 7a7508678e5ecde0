"""What the operating system gives: atomic files, locks, short-lived processes."""
