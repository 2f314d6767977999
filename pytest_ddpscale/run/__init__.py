"""A run on disk and in memory: typed records in JSON lines, their directory, and their columns."""
