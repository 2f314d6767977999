"""How throughput scales with GPUs: what was measured, and what sizes that were not would reach."""
