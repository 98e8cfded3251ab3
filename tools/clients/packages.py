"""Clients at pinned versions, each in a folder of its own that git ignores."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "tests" / "clients" / "locks"
CACHE = Path(os.environ.get("CLIENTS_CACHE") or ROOT / "build" / "clients" / "cache")
INSTALL_DEADLINE_S = 1800.0


class NotInstalled(Exception):
    """A client that cannot be installed here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages(ABC):
    """A set of packages that are installed together. The first names the client."""

    name: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Return the place of the installed packages."""
        return CACHE / self.name

    def install(self) -> None:
        """Install what the lock names, unless that is there.

        Raises:
            NotInstalled: there is no network, or no Node.
        """
        lock = "\n".join(path.read_text() for path in self.lock_files)
        mark = self.folder / ".lock"
        if mark.exists() and mark.read_text() == lock:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._install()
        mark.write_text(lock)

    @property
    @abstractmethod
    def lock_files(self) -> tuple[Path, ...]:
        """Return the files that pin the packages."""

    @property
    @abstractmethod
    def commands(self) -> Path:
        """Return the folder of the installed programs."""

    @property
    @abstractmethod
    def version(self) -> str:
        """Return the installed version of the client."""

    @abstractmethod
    def lock(self) -> None:
        """Resolve the packages anew and write the lock."""

    @abstractmethod
    def _install(self) -> None: ...


class Npm(Packages):
    """Packages of npm."""

    @property
    def lock_files(self) -> tuple[Path, ...]:
        """Return package.json and package-lock.json."""
        return LOCKS / self.name / "package.json", LOCKS / self.name / "package-lock.json"

    @property
    def commands(self) -> Path:
        """Return the folder of the installed programs."""
        return self.folder / "node_modules" / ".bin"

    @property
    def version(self) -> str:
        """Return the installed version of the client."""
        found = json.loads((self.folder / "node_modules" / self.packages[0] / "package.json").read_text())
        return str(found["version"])

    def lock(self) -> None:
        """Resolve the packages anew; Node's version decides which are the newest that run here."""
        # Not --package-lock-only: that leaves out optional packages of other platforms, and `npm ci` misses them.
        options = ["--save-exact", "--omit-lockfile-registry-resolved", *_QUIET]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "package.json").write_text(json.dumps({"name": f"puna-{self.name}", "private": True}))
            _call([_npm(), "install", *options, *self.packages], Path(folder))
            for path in self.lock_files:
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path(folder) / path.name, path)

    def _install(self) -> None:
        for path in self.lock_files:
            shutil.copy(path, self.folder)
        _call([_npm(), "install", *_QUIET], self.folder)


class Pip(Packages):
    """Packages of Python, in a virtual environment."""

    @property
    def lock_files(self) -> tuple[Path, ...]:
        """Return the requirements."""
        return (LOCKS / f"{self.name}.txt",)

    @property
    def commands(self) -> Path:
        """Return the folder of the installed programs."""
        return self.folder / "venv" / "bin"

    @property
    def version(self) -> str:
        """Return the locked version of the client, which is what was installed."""
        client = _canonical(self.packages[0])
        for line in self.lock_files[0].read_text().splitlines():
            if line.startswith(f"{client}=="):
                return line.removeprefix(f"{client}==").partition(" ")[0]
        raise AssertionError(f"{self.lock_files[0]} does not pin {client}")

    def lock(self) -> None:
        """Resolve the packages anew, for this Python and this kind of machine."""
        with tempfile.NamedTemporaryFile(suffix=".json") as report:
            options = ["--dry-run", "--ignore-installed", "--quiet", "--report", report.name]
            _call([sys.executable, "-m", "pip", "install", *options, *self.packages], ROOT)
            found = json.loads(Path(report.name).read_text())["install"]
        lines = []
        for package in found:
            name, version = _canonical(package["metadata"]["name"]), package["metadata"]["version"]
            lines.append(
                f"{name}=={version} --hash=sha256:{package['download_info']['archive_info']['hashes']['sha256']}"
            )
        self.lock_files[0].parent.mkdir(parents=True, exist_ok=True)
        self.lock_files[0].write_text("\n".join(sorted(lines)) + "\n")

    def _install(self) -> None:
        _call([sys.executable, "-m", "venv", str(self.folder / "venv")], self.folder)
        pip = [str(self.commands / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        _call([*pip, "--requirement", str(self.lock_files[0])], self.folder)


_QUIET = ("--loglevel=error", "--no-audit", "--no-fund")


def _npm() -> str:
    found = shutil.which("npm")
    if found is None:
        raise NotInstalled("npm is missing")
    return found


def _call(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=INSTALL_DEADLINE_S
        )
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"{Path(command[0]).name} took longer than {INSTALL_DEADLINE_S:.0f} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NotInstalled(f"{Path(command[0]).name} failed: {said[-1] if said else done.returncode}")


def _canonical(package: str) -> str:
    """Return a package's name as indexes compare it, without extras and version."""
    name = package.partition("[")[0].partition("==")[0]
    return name.lower().replace("_", "-").replace(".", "-")
