"""How many threads compute, what they do between calls, and which faults of the engine are stayed clear of. Pure."""
