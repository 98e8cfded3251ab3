"""Placement of a model: a request and a snapshot in, a placement or a refusal out. Nothing here is remembered."""
