"""The history of all runs: their figures, and the changes of each series."""
