"""Models for `gauntlet bench`: architectures as their field knows them, with seeded random weights."""
