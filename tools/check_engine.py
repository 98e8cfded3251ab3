"""`python -m tools.check_engine`: exit 0 if llama-cpp-python is built as Puna needs it, else say what is wrong."""

import sys
from importlib.metadata import version

REQUIRED_VERSION = "0.3.36"


def main() -> int:
    """Check version and RPC support of the engine build."""
    found = version("llama-cpp-python")
    if found != REQUIRED_VERSION:
        print(f"llama-cpp-python {found} is installed, {REQUIRED_VERSION} is needed: run `make setup`", file=sys.stderr)
        return 1
    from llama_cpp import llama_cpp  # noqa: PLC0415  # loading it starts the engine library

    if not hasattr(llama_cpp._lib, "ggml_backend_rpc_add_server"):
        print("llama-cpp-python was built without GGML_RPC=on: run `make setup`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
