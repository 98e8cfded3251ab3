"""The stages of a setup, in order: which are due, and their commands."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.setup.command import run_command
from tools.setup.console import Console
from tools.setup.machine import NotReady, check_build_space, check_modules, choose_compilers
from tools.setup.progress import read_build, read_packages
from tools.setup.record import Lock, Record, digest, digest_of_files

# A model over several nodes needs RPC.
CMAKE_ARGS = "-DGGML_RPC=on"
_PACKAGES = "lib/python*/site-packages"
# Libraries of backends that a build without their flag would silently lack.
_GPU_BACKENDS = {
    "cuda": "-DGGML_CUDA=on",
    "hip": "-DGGML_HIP=on",
    "vulkan": "-DGGML_VULKAN=on",
    "sycl": "-DGGML_SYCL=on",
    "musa": "-DGGML_MUSA=on",
}
# Variables of the make that runs this would reach the make or Ninja that builds the engine.
_OF_MAKE = frozenset({"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MAKE_TERMOUT", "MAKE_TERMERR"})
ENVIRONMENT, PACKAGES, ENGINE, PUNA, CHECK = STAGES = ("environment", "packages", "engine", "puna", "check")
TITLES = {stage: stage for stage in STAGES} | {PUNA: "Puna"}
LOG, RECORD = "setup.log", "setup.json"  # in .venv


class StageFailed(Exception):
    """A command of a stage ended with this exit status; its errors are written already."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of the stages."""

    environment: dict[str, Any]
    packages: dict[str, Any]
    engine: dict[str, Any]
    puna: dict[str, Any]

    def of(self, stage: str) -> dict[str, Any]:
        """Return the inputs of a recorded stage."""
        found: dict[str, Any] = getattr(self, stage)
        return found


def read_inputs(root: Path, lock: Lock, record: Record, environ: Mapping[str, str]) -> Inputs:
    """Read the inputs of all stages. Flags that are not given stay as the engine was built with the last time."""
    built = record.made_from(ENGINE)
    flags = {
        "cmake_args": environ.get("CMAKE_ARGS", built.get("cmake_args", CMAKE_ARGS)),
        "cxxflags": environ.get("CXXFLAGS", built.get("cxxflags", "")),
    }
    own = [
        root / "pyproject.toml",
        root / "hatch_build.py",
        root / "tools/protos.py",
        *(root / "protos").glob("*.proto"),
    ]
    return Inputs(
        environment={"python": f"{sys.version_info.major}.{sys.version_info.minor}"},
        packages={"lock": digest(lock.packages)},
        engine={"lock": digest(lock.engine), **flags},
        puna={"files": digest_of_files(own)},
    )


def due_stages(record: Record, inputs: Inputs) -> tuple[str, ...]:
    """Return the stages that have to run. A new environment is empty; the engine is checked after it was installed."""
    recorded = (ENVIRONMENT, PACKAGES, ENGINE, PUNA)
    due = {stage for stage in recorded if not record.is_finished(stage, inputs.of(stage))}
    if ENVIRONMENT in due:
        due.update(recorded)
    if ENGINE in due:
        due.add(CHECK)
    return tuple(stage for stage in STAGES if stage in due)


class Setup:
    """Runs stages in a checkout. Each is noted in the record as it begins and as it ends."""

    def __init__(self, root: Path, lock: Lock, record: Record, inputs: Inputs, environ: Mapping[str, str]) -> None:
        self._root = root
        self._venv = root / ".venv"
        self._lock = lock
        self._record = record
        self._inputs = inputs
        self._environ = {name: value for name, value in environ.items() if name not in _OF_MAKE}
        self._was_unfinished = record.is_unfinished(ENVIRONMENT)
        before = record.made_from(ENGINE)
        # pip looks only at the version of what is installed, not at its flags.
        self._replaces_engine = bool(before) and (before != inputs.engine or record.is_unfinished(ENGINE))

    def check_machine(self, due: tuple[str, ...]) -> None:
        """Check what the due stages need.

        Raises:
            NotReady: something is missing.
        """
        if ENVIRONMENT in due:
            check_modules()
        if ENGINE in due:
            self._check_flags_are_known()
            self._environ |= choose_compilers(self._environ)
            check_build_space(self._venv)

    def _check_flags_are_known(self) -> None:
        """Refuse to replace an engine for GPUs by one for the CPU, because the record of its flags is lost."""
        if self._record.made_from(ENGINE) or "CMAKE_ARGS" in self._environ:
            return
        libraries = self._venv.glob(f"{_PACKAGES}/llama_cpp/lib/libggml-*.so")
        backends = {path.stem.removeprefix("libggml-") for path in libraries} & _GPU_BACKENDS.keys()
        if backends:
            flags = " ".join([CMAKE_ARGS, *(_GPU_BACKENDS[backend] for backend in sorted(backends))])
            raise NotReady(
                f"the engine in .venv was built for {', '.join(sorted(backends))}, and {RECORD}, which kept its flags,"
                f' cannot be read. Name them: CMAKE_ARGS="{flags}" make setup'
            )

    def is_engine_missing(self) -> bool:
        """Return True if no engine is installed, of whatever version."""
        return not any(self._venv.glob(f"{_PACKAGES}/llama_cpp_python-*.dist-info"))

    def run(self, due: tuple[str, ...], console: Console) -> None:
        """Run the due stages.

        Raises:
            StageFailed: one failed; the next setup runs it again.
        """
        for number, stage in enumerate(due, start=1):
            title = f"[{number}/{len(due)}] {TITLES[stage]}"
            match stage:
                case "environment":
                    self._record.begin(stage, self._inputs.environment)
                    console.begin(title)
                    self._make_environment(console)
                    self._record.finish(stage)
                case "packages":
                    self._record.begin(stage, self._inputs.packages)
                    console.begin(title, read_packages, total=self._lock.package_count)
                    self._install_packages(console)
                    self._record.finish(stage)
                case "engine":
                    self._record.begin(stage, self._inputs.engine)
                    console.begin(title, read_build)
                    self._install_engine(console, *(["--force-reinstall"] if self._replaces_engine else []))
                case "puna":
                    self._record.begin(stage, self._inputs.puna)
                    console.begin(title)
                    self._run_pip(console, "--no-deps", "--no-build-isolation", "--editable", ".")
                    self._record.finish(stage)
                case _:
                    console.begin(title)
                    self._check_engine(console, title)
                    self._record.finish(ENGINE)
            console.end()

    def _make_environment(self, console: Console) -> None:
        """Make the environment; one that is there and whole keeps its packages."""
        if not self._is_environment_whole():
            for path in set(self._venv.iterdir()) - {self._venv / LOG, self._venv / RECORD}:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        self._run(console, sys.executable, "-m", "venv", str(self._venv))

    def _is_environment_whole(self) -> bool:
        try:
            made_by = (self._venv / "pyvenv.cfg").read_text(encoding="utf-8")
        except OSError:
            return False
        same_python = re.search(rf"^version = {re.escape(self._inputs.environment['python'])}\b", made_by, re.MULTILINE)
        if not same_python or self._was_unfinished:
            return False
        command = [self._python, "-m", "pip", "--version"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _install_packages(self, console: Console) -> None:
        self._drop_half_installed()
        self._run_pip(console, "--require-hashes", "-r", self._write_lock("packages", self._lock.packages))

    def _install_engine(self, console: Console, *options: str) -> None:
        """Compile and install the engine; -v makes pip pass on the output of Ninja."""
        lock = self._write_lock("engine", self._lock.engine)
        flags = self._inputs.engine
        found = subprocess.run(
            [str(self._root / "tools/compiler_flags.sh")], capture_output=True, text=True, check=False
        )
        own = shlex.quote(f"-DCMAKE_PROJECT_llama_cpp_INCLUDE={self._root}/tools/engine.cmake")
        self._environ |= {
            "CMAKE_ARGS": f"{flags['cmake_args']} {own}",
            "CXXFLAGS": f"{flags['cxxflags']} {found.stdout.strip()}".strip(),
            "NINJA_STATUS": "[%f/%t] ",
        }
        # The wheel that pip keeps may have been built with other flags than ours.
        caching = ["--no-cache-dir"] if flags["cmake_args"] != CMAKE_ARGS else []
        self._drop_half_installed()
        options = ("-v", "--no-deps", "--require-hashes", "--no-binary", "llama-cpp-python", *caching, *options)
        self._run_pip(console, *options, "-r", lock)

    def _check_engine(self, console: Console, title: str) -> None:
        """Check that the engine computes here, with RPC. One that pip has kept from elsewhere is built again."""
        try:
            self._run(console, self._python, "-m", "tools.check_engine")
        except StageFailed:
            console.begin(f"{title}: engine", read_build)
            self._install_engine(console, "--force-reinstall", "--no-cache-dir")
            self._run(console, self._python, "-m", "tools.check_engine")

    def _drop_half_installed(self) -> None:
        """Forget distributions whose installation was interrupted: pip writes INSTALLER last, and believes METADATA."""
        for metadata in self._venv.glob(f"{_PACKAGES}/*.dist-info"):
            if not (metadata / "INSTALLER").exists():
                shutil.rmtree(metadata)

    def _write_lock(self, name: str, text: str) -> str:
        path = self._venv / f"{name}.lock"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def _run_pip(self, console: Console, *arguments: str) -> None:
        self._run(console, self._python, "-m", "pip", "install", "--progress-bar", "off", *arguments)

    @property
    def _python(self) -> str:
        return str(self._venv / "bin" / "python")

    def _run(self, console: Console, *command: str) -> None:
        status = run_command(command, folder=self._root, environment=self._environ, heard=console.hear)
        if status != 0:
            raise StageFailed(status)
