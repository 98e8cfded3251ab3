"""State of the core, and its changes: events in, effects out."""
