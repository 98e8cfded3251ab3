"""The only importer of llama_cpp: everything that touches llama.cpp, ggml and gguf."""
