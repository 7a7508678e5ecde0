"""What was done: append-only logs, their readers, what a run came to."""
