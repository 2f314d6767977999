"""Measurements as typed records in JSON lines, and the run directory that keeps them."""
