"""Free bytes for a load now, and replicas that may be evicted for it."""
