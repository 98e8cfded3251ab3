"""The only importer of llama_cpp: everything that touches llama.cpp, ggml and gguf."""

import os

# Read by the libraries when they are loaded or fail, so they are set before anything here imports llama_cpp.
# A crash inside ggml otherwise starts a debugger to print a backtrace, which takes seconds.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
# ggml's threads meet at a barrier after every operation. OpenMP lets those who wait spin for milliseconds, and where
# other processes want the same cores the one that is waited for does not run meanwhile: 57 million parameters on two
# busy cores made 68 tokens/s with the default and 613 with this. A node that has nothing else to do sets
# OMP_WAIT_POLICY=active.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "300")
