"""The gateway: translates dialects, chooses replicas, relays streams. Holds no state that a restart loses."""
