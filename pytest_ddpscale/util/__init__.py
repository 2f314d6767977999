"""Small helpers that any part of the package may import."""
