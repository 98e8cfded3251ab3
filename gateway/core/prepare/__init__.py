"""Requests combined with the model that they name. Pure."""
