"""A real libcuda.so.1 in C++ under the real torch wheel, for tests of GPUs where there are none."""
