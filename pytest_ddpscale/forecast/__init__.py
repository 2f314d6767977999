"""How throughput scales with GPUs: measured sizes, and forecasts of others."""
