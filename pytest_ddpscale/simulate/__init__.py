"""Simulated runs: what a cluster, sound or faulty, would have measured. Imports no torch."""
