"""Texts that become one vector or score. Pure."""
