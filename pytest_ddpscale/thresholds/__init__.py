"""thresholds.yaml: its model, and loading it with line numbers in every error."""
