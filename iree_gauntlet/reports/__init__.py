"""Generate from the journal the reports that people and programs read."""
