"""Comparison of two runs, or of a run with the site's history. Pure except for reading files."""
