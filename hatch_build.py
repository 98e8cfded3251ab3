"""Build hook: generate the gRPC stubs from protos/*.proto, for wheels and for editable installs alike."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

STUB_SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


class StubHook(BuildHookInterface):  # type: ignore[type-arg]  # the hook takes no configuration
    """Runs before hatchling collects files."""

    PLUGIN_NAME = "stubs"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # hatchling calls by position
        """Generate the stubs and add them to what is packed; version control does not know them."""
        root = Path(self.root)
        subprocess.run([sys.executable, "-m", "tools.protos"], cwd=root, check=True)
        build_data["artifacts"] += [f"/protos/*{suffix}" for suffix in STUB_SUFFIXES]
