"""From measurements to per-round values of a metric: pure functions."""
