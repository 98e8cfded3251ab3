"""Changes to the model store of the node, in the layout of Ollama, and its service."""
