"""GPU model: detection through NVML, and matching against thresholds.yaml."""
