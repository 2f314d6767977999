"""What a node has to be: checks of surveys, telemetry and transports. `catalogue` has them all."""
