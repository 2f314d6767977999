"""What every part may use, and nothing else does."""
