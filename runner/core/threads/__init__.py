"""Compute threads: their number, their waits between calls, and engine faults to avoid. Pure."""
