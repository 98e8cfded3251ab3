"""API keys and what they may use up. Pure."""
