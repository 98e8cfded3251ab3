"""Processes that read hostile input: their limits, and pools of those that compute for requests."""
