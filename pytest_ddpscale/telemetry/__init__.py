"""Device telemetry during measurements. Imports only the standard library and NVML."""
