"""What the gateway alone costs: latency that it adds to a runner's own gRPC, and tokens that one core relays."""
