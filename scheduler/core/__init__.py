"""The decisions, pure: events in, effects out."""
