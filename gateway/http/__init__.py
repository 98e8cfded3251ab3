"""The HTTP side of the gateway: dialects, errors, streams."""
