"""Comparison of two runs, and what nodes reached in earlier ones. Pure except for reading files."""
