"""Build hook: the gRPC stubs from protos/*.proto, for wheels and for editable installs alike; wheels keep their commit.

The commit is what SOURCE_COMMIT says, else git: an image is built from files without their history.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMMIT_DIGITS = 12  # as common/version.py reads
STUB_SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


class StubHook(BuildHookInterface):  # type: ignore[type-arg]  # the hook takes no configuration
    """Runs before hatchling collects files."""

    PLUGIN_NAME = "stubs"
    _kept: "TemporaryDirectory[str] | None" = None  # holds the commit until it is packed

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate the stubs and add them to what is packed; version control does not know them."""
        root = Path(self.root)
        subprocess.run([sys.executable, "-m", "tools.protos"], cwd=root, check=True)
        build_data["artifacts"] += [f"/protos/*{suffix}" for suffix in STUB_SUFFIXES]
        # An editable install goes on with the checkout that it is of, and reads the commit there (common/version.py).
        commit = _commit(root) if self.target_name == "wheel" and version != "editable" else ""
        if commit:
            self._kept = TemporaryDirectory()
            file = Path(self._kept.name, "commit.txt")
            file.write_text(commit + "\n", encoding="utf-8")
            build_data["force_include"][str(file)] = "common/commit.txt"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  # hatchling calls by position
        """Remove the build's files once the wheel is written."""
        if self._kept is not None:
            self._kept.cleanup()


def _commit(root: Path) -> str:
    """Twelve digits, and ".dirty" where the tree differs from them. Empty: nobody knows.

    Raises:
        SystemExit: SOURCE_COMMIT is no commit.
    """
    given = os.environ.get("SOURCE_COMMIT", "").strip()
    if given:
        if not re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", given):
            raise SystemExit(f"SOURCE_COMMIT is no commit: {given[:64]!r}")
        digits, _, dirty = given.partition("-")
        return digits[:COMMIT_DIGITS] + (".dirty" if dirty else "")
    if not (root / ".git").exists():  # a directory above may be another project's
        return ""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", f"--abbrev={COMMIT_DIGITS}"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip().replace("-", ".")
