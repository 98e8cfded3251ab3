"""What compute threads do between calls, and which faults of the engine are stayed clear of. Pure."""
