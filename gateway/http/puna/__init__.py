"""Puna's own routes: placements, keys, operations, and what the page reads."""
