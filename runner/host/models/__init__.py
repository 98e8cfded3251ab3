"""The model files of the node."""
