"""Where protos end: messages of other services, and of the typed face, as values of `gateway.core`."""
