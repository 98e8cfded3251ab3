"""Converters between protos (of other services, and of the typed gRPC API) and values or JSON."""
