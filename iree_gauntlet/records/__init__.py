"""Records of finished work: append-only logs, their readers, the results of runs."""
