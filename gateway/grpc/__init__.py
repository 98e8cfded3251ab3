"""The typed face: servicers, and where protos end."""
