"""Runs inside each rank: torch, the standard library and NVML; never pytest or pydantic."""
