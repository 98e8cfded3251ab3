"""The default engine: continuous batching."""
