"""Hosts that only ssh reaches, on one machine, for tests and scripts."""
