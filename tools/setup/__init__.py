"""`make setup`: create .venv, install packages by the lock, compile the engine. Needs only the standard library."""
