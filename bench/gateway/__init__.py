"""Costs of the gateway alone: latency added to a runner's own gRPC, and tokens that one core relays."""
