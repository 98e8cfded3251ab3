"""Checks of real cards, and the command that runs them all: `make gpu`."""
