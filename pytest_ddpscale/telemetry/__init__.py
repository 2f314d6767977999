"""What the devices report about themselves while they are measured. Stdlib and NVML only."""
