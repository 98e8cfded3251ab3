"""Whose turn it is, at which replica, and what is turned away. Pure."""
