"""The acceptance tests: one readable item per requirement of thresholds.yaml."""
