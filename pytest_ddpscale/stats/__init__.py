"""Intervals and drift of rounds. Pure functions."""
