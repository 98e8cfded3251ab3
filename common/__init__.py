"""Code that every process needs and no service owns: errors, gRPC set-up, logs, metrics, settings, clock, ids."""
