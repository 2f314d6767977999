"""Intervals from rounds, and whether rounds stand still. Pure functions."""
