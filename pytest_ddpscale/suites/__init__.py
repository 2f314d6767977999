"""Studies without thresholds: PyTorch's DDP benchmark, tuning, collectives, inference and others."""
