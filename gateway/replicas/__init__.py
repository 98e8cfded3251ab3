"""Which replica serves, and who waits for it."""
