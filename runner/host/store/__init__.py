"""The model store of a node on disk, in the layout of Ollama, and its service."""
