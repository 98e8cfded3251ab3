"""The thread of an engine, how many threads compute, and how long they spin."""
