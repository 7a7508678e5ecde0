"""What all runs together say: every run kept, every series judged."""
