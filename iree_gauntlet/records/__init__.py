"""Records of finished work: append-only logs, readers of the logs, and the results of runs."""
