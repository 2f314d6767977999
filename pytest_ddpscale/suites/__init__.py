"""Studies that no threshold asks for: benchmarks of others, tuning, collectives, inference."""
