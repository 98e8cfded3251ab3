"""A cluster with keys, and commands that are run against it."""

import contextlib
import gc
import io
import json
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from cli.main import main
from tests.cluster import Cluster
from tests.integration.cli.terminal import Terminal

ROOT = Path(__file__).resolve().parents[3]
COMMAND_WITHIN_S = 100.0


def run_puna(*arguments: str, stdin: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    """One command to its end, with a pipe for its input."""
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=COMMAND_WITHIN_S,
        check=False,
    )


def call_puna(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The same in this process, for commands that read no input: a Python that starts costs more than most of them."""
    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "argv", ["puna", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", ResourceWarning)  # a program that ends leaves closing to the kernel
        try:
            main()
        except SystemExit as ended:
            status = ended.code or 0
        gc.collect()
    assert isinstance(status, int)
    return subprocess.CompletedProcess(arguments, int(status), out.getvalue(), err.getvalue())


def create_key(file: Path, owner: str, *scopes: str) -> str:
    """A new key in a file of keys."""
    words = [word for scope in scopes for word in ("--scope", scope)]
    done = call_puna("keys", "create", "--owner", owner, *words, "--file", str(file), "--json")
    key: str = json.loads(done.stdout)["key"]
    return key


@dataclass(frozen=True, kw_only=True)
class Place:
    """`key` may do everything, `reader` only look."""

    cluster: Cluster
    key: str
    reader: str

    def environment(self, **more: str) -> dict[str, str]:
        return {"PUNA_HOME": str(self.cluster.home), "PUNA_API_KEY": self.key, **more}

    def puna(self, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return call_puna(*arguments, **self.environment(**more))

    def piped(self, *arguments: str, stdin: str = "", **more: str) -> "subprocess.CompletedProcess[str]":
        return run_puna(*arguments, stdin=stdin, **self.environment(**more))

    def json(self, *arguments: str, **more: str) -> Any:
        done = self.puna(*arguments, "--json", **more)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def terminal(self, *arguments: str, **more: str) -> Terminal:
        environment = self.environment(**more)
        return Terminal(self.cluster.home, *arguments, **environment)
