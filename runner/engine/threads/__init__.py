"""The thread of an engine, and how long compute threads spin."""
