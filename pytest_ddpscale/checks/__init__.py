"""Node checks of surveys, telemetry and transports; `catalogue` lists them all."""
