"""Checks of `puna doctor`: facts in, findings out. Pure."""
