"""Devices that cross nodes: leases, tunnels, both ends."""
