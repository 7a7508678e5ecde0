"""What was done: append-only logs, their readers, the results of runs."""
