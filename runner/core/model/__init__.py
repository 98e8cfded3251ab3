"""Values of GGUF files, and the checks that one passes before llama.cpp reads it. Pure."""
