"""Runs that never happened: what a cluster, sound or faulty, would have measured. Stdlib only."""
