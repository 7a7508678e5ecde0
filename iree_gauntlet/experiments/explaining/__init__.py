"""What `explain` does with a failure: it is found again, located, cut out and packed up."""
