"""Real clients without a network: what they are called with (`tools/clients` runs them)."""
