"""Decisions of a pull: the registry to ask, the answers to its challenges, and the bytes still missing. Pure."""
