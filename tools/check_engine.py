"""`python -m tools.check_engine`: exit 0 if llama-cpp-python is built as Puna needs it, else say what is wrong."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

REQUIRED_VERSION = "0.3.36"
DEMO = Path(__file__).resolve().parents[1] / "models" / "demo.gguf"
_COMPUTE_WITHIN_S = 120.0


def main() -> int:
    """Check version, RPC support, and that quantized weights can be computed with here."""
    found = version("llama-cpp-python")
    if found != REQUIRED_VERSION:
        print(f"llama-cpp-python {found} is installed, {REQUIRED_VERSION} is needed: run `make setup`", file=sys.stderr)
        return 1
    model = ("--model", str(DEMO)) if DEMO.is_file() else ()
    # In a process of its own, because what the compiler did wrong shows as a signal.
    tried = subprocess.run(
        [sys.executable, "-m", "runner", "self-test", *model],
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
    if not json.loads(tried.stdout.splitlines()[-1])["rpc"]:
        print("llama-cpp-python was built without GGML_RPC=on: run `make setup`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
