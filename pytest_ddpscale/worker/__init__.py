"""Code that runs in each rank, with torch, the standard library and NVML; never pytest or pydantic."""
