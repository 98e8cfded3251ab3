"""What a GGUF is, and whether it may reach llama.cpp. Pure."""
