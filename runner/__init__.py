"""The engine side: runners (one loaded model each) and the host that owns a node."""
