"""The engine for models with pooling."""
