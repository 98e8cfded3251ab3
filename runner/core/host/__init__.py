"""What a host does about commands, leases and children. Pure."""
