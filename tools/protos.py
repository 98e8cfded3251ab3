"""Generate Python stubs and their types beside protos/*.proto: `python -m tools.protos`.

The proto path is the package path, so the generated imports (`from protos import …`) need no rewriting.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Run protoc over every proto file; the mypy plugins are found beside this interpreter, active or not."""
    scripts = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    environment = os.environ | {"PATH": os.pathsep.join([*scripts, os.environ.get("PATH", "")])}
    protos = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").glob("*.proto"))
    with tempfile.TemporaryDirectory(dir=ROOT / "protos", prefix=".stubs-") as made:
        outputs = [f"--{plugin}_out={made}" for plugin in ("python", "grpc_python", "mypy", "mypy_grpc")]
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, *protos]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        for stub in sorted((Path(made) / "protos").iterdir()):
            _put(stub, ROOT / "protos" / stub.name)


def _put(stub: Path, place: Path) -> None:
    """Replace changed files, each in one step: another process may be importing them."""
    if not place.exists() or place.read_bytes() != stub.read_bytes():
        stub.replace(place)


if __name__ == "__main__":
    main()
