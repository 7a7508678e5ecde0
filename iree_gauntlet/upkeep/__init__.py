"""What reads records and edits specs or caches."""
