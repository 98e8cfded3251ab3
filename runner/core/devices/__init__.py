"""Devices of a node, and the free memory of each. Pure."""
