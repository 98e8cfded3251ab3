"""Fetches models: from registries over HTTP, from the stores of other hosts over gRPC."""
