"""Generate everything that people and programs read from the journal."""
