"""`python -m tools.check_engine`: exit 0 if llama-cpp-python is built as Puna needs it, else say what is wrong."""

import ctypes
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

REQUIRED_VERSION = "0.3.36"
DEMO = Path(__file__).resolve().parents[1] / "models" / "demo.gguf"
_COMPUTE = "--compute"
_COMPUTE_WITHIN_S = 120.0
_Q8_0 = 7  # llama_ftype


def main() -> int:
    """Check version, RPC support, and that quantized weights can be computed with here."""
    if sys.argv[1:] == [_COMPUTE]:
        return compute()
    found = version("llama-cpp-python")
    if found != REQUIRED_VERSION:
        print(f"llama-cpp-python {found} is installed, {REQUIRED_VERSION} is needed: run `make setup`", file=sys.stderr)
        return 1
    from llama_cpp import llama_cpp  # noqa: PLC0415  # loading it starts the engine library

    if not hasattr(llama_cpp._lib, "ggml_backend_rpc_add_server"):
        print("llama-cpp-python was built without GGML_RPC=on: run `make setup`", file=sys.stderr)
        return 1
    # In a process of its own, because what the compiler did wrong shows as a signal.
    tried = subprocess.run(
        [sys.executable, "-m", "tools.check_engine", _COMPUTE],
        cwd=DEMO.parents[1],
        capture_output=True,
        timeout=_COMPUTE_WITHIN_S,
        check=False,
    )
    if tried.returncode:
        print(
            f"the engine cannot compute with quantized weights on this processor (status {tried.returncode}): build it"
            " here, with the flags of tools/compiler_flags.sh; `make setup` does that",
            file=sys.stderr,
        )
        return 1
    return 0


def compute() -> int:
    """Decode two tokens of the demo model, quantized; 0 if that works, or if there is no demo model."""
    from llama_cpp import llama_cpp as llama  # noqa: PLC0415  # as above

    if not DEMO.is_file():
        return 0
    llama.llama_backend_init()
    with tempfile.TemporaryDirectory() as directory:
        quantized = str(Path(directory) / "demo-q8_0.gguf").encode()
        how = llama.llama_model_quantize_default_params()
        how.ftype = _Q8_0
        if llama.llama_model_quantize(str(DEMO).encode(), quantized, ctypes.byref(how)):
            return 2
        model = llama.llama_model_load_from_file(quantized, llama.llama_model_default_params())
        if not model:
            return 3
        sizes = llama.llama_context_default_params()
        sizes.n_ctx = 256
        context = llama.llama_init_from_model(model, sizes)
        if not context:
            return 4
        tokens = (ctypes.c_int32 * 2)(300, 301)
        return 0 if llama.llama_decode(context, llama.llama_batch_get_one(tokens, 2)) == 0 else 5


if __name__ == "__main__":
    sys.exit(main())
