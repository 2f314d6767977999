"""A real libnvidia-ml.so.1 in C that plays machines with GPUs, for tests where there are none."""
