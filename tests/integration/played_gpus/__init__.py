"""Real sessions on played GPUs: NVML is the stand-in's, ranks train on the CPU and go by the GPUs' UUIDs."""
