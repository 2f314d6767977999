"""From per-round values to verdicts and the run's outcome: pure functions."""
