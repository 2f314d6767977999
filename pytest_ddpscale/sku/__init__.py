"""Which GPU model this is: detection through NVML, and matching against thresholds.yaml."""
