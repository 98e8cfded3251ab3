"""Contract of every engine with the server. No engine is imported here."""
