"""llama.cpp's and ggml's functions as Python calls them."""
