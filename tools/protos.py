"""Generate Python stubs and their types beside protos/*.proto: `python -m tools.protos`.

The proto path is the package path, so the generated imports (`from protos import …`) need no rewriting.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Run protoc over every proto file; the mypy plugins are found beside this interpreter, active or not."""
    scripts = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    environment = os.environ | {"PATH": os.pathsep.join([*scripts, os.environ.get("PATH", "")])}
    protos = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").glob("*.proto"))
    outputs = [f"--{plugin}_out=." for plugin in ("python", "grpc_python", "mypy", "mypy_grpc")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, *protos]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


if __name__ == "__main__":
    main()
