"""Probes on a rank: one module per kind, and the rounds in which they are timed."""
