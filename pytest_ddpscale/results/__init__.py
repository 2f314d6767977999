"""What was measured, as JSON lines, and the run directory that keeps it. Stdlib only."""
