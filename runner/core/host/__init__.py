"""Decisions of a host about commands, leases and children. Pure."""
