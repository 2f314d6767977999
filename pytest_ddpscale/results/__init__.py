"""What was measured, as typed records in JSON lines, and the run directory that keeps it."""
