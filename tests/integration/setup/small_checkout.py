"""A checkout that is set up in seconds: the real Makefile, tools/setup, pip, Ninja and compiler, and a small engine.

Its two packages come from a folder instead of an index. The source of the engine compiles one file with Ninja; what
that file or its rule is decides how the setup ends.
"""

import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ENDS_WITHIN_S = 200.0
GOOD_CODE = "int answer() { return 42; }\n"
BAD_CODE = "int answer() { return missing_name; }\n"
COMPILE = "c++ -shared -fPIC $in -o $out"
# Of `packages.lock`, of the engine and of the checkout itself; standard library only, so that nothing is downloaded.
_BACKEND = """
import os, subprocess, sys, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    files = {}
    if os.path.exists("build.ninja"):
        subprocess.run(["ninja"], check=True)
        files["small_engine/answer.so"] = open("answer.so", "rb").read()
    return _pack(folder, files)

def build_editable(folder, config_settings=None, metadata_directory=None):
    return _pack(folder, {"checkout.pth": os.getcwd().encode()})

def _pack(folder, files):
    name, version = open("name.txt").read().split()
    stem = f"{name}-{version}"
    info = f"{stem}.dist-info"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in [*files, f"{info}/RECORD"]).encode()
    with zipfile.ZipFile(os.path.join(folder, f"{stem}-py3-none-any.whl"), "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
    return f"{stem}-py3-none-any.whl"
"""
_PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
_CHECK = "import pathlib, small_engine; assert list(pathlib.Path(small_engine.__path__[0]).glob('answer.so'))\n"


@dataclass(slots=True, kw_only=True)
class SmallCheckout:
    """The folder, and `make setup` in it."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    def write(self) -> None:
        """Write everything but the engine."""
        shutil.copytree(ROOT / "tools" / "setup", self.root / "tools" / "setup")
        for name in ("Makefile", "tools/__init__.py", "tools/compiler_flags.sh", "tools/protos.py", "hatch_build.py"):
            shutil.copy(ROOT / name, self.root / name)
        files = {"tools/check_engine.py": _CHECK, "backend.py": _BACKEND, "pyproject.toml": _PYPROJECT}
        for name, text in {**files, "name.txt": "puna 1", "protos/small.proto": "", "index/.keep": ""}.items():
            (self.root / name).parent.mkdir(exist_ok=True)
            (self.root / name).write_text(text)
        other = self._write_source("small-package", "1.0", {})
        (self.root / "packages.txt").write_text(f"small-package==1.0 \\\n    --hash=sha256:{other}\n    # via puna\n")

    def provide_engine(self, version: str, *, code: str = GOOD_CODE, rule: str = COMPILE) -> None:
        """Put a source of the engine into the index, and into the lock."""
        ninja = f"rule compile\n  command = {rule}\nbuild answer.so: compile answer.cpp\n"
        digest = self._write_source("llama-cpp-python", version, {"build.ninja": ninja, "answer.cpp": code})
        lock = f"llama-cpp-python=={version} \\\n    --hash=sha256:{digest}\n"
        (self.root / "requirements-dev.lock").write_text(lock + (self.root / "packages.txt").read_text())

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        """Start `make setup` in a group of its own."""
        return subprocess.Popen(
            ["make", "setup", f"PYTHON={sys.executable}", *arguments],
            cwd=self.root,
            env=self._environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def set_up(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run `make setup`; return its exit status and output."""
        process = self.start(*arguments, **environment)
        try:
            output, _ = process.communicate(timeout=ENDS_WITHIN_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        return process.returncode, output

    def is_ready(self) -> bool:
        """Return True if make counts the setup as done."""
        return subprocess.run(["make", "--question", "setup"], cwd=self.root, check=False).returncode == 0

    def _write_source(self, name: str, version: str, files: Mapping[str, str]) -> str:
        stem = f"{name.replace('-', '_')}-{version}"
        about = {"PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
        about |= {
            "pyproject.toml": _PYPROJECT,
            "backend.py": _BACKEND,
            "name.txt": f"{name.replace('-', '_')} {version}",
        }
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for path, text in {**about, **files}.items():
                entry = tarfile.TarInfo(f"{stem}/{path}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
        (self.root / "index" / f"{stem}.tar.gz").write_bytes(packed.getvalue())
        return hashlib.sha256(packed.getvalue()).hexdigest()

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        ours = {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.root / "index"),
            "PIP_CACHE_DIR": str(self.root / "cache"),
        }
        # A make that runs the tests hands its own variables down; pip's settings are those of this machine.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PIP_"))}
        return {**kept, "PIP_CONFIG_FILE": os.devnull, **ours, **more}
