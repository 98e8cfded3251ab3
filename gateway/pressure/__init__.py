"""Pressure on this process."""
