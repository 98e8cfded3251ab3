"""Attacks of docs/security.md against a real cluster: `python -m tests.attack`, or `make attack`."""
