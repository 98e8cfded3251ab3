"""The only importer of llama_cpp: everything that touches llama.cpp, ggml and gguf."""

import os

# Read by the libraries when they are loaded or fail, so they are set before anything here imports llama_cpp.
# A crash inside ggml otherwise starts a debugger to print a backtrace, which takes seconds.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
