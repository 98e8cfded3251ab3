"""Decides which model runs where, and tells gateways."""
