"""Comparison of two runs. Pure except for reading files."""
