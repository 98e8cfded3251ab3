"""Chat templates from GGUF files: hostile input, rendered in processes that can be killed."""
