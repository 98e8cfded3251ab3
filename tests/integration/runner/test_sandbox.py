"""Hostile code inside real processes that read model files: what it tries is refused.

The code runs while the mode's own modules are imported, as code of a model file would: in the process itself, after it
was confined.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.sandbox import NETWORK_VERSION, landlock_version
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.processes import ROOT

pytestmark = pytest.mark.skipif(
    landlock_version() < NETWORK_VERSION, reason=f"this kernel has Landlock {landlock_version()}, not {NETWORK_VERSION}"
)

# Runs when the first module of the mode's own is imported: the process is confined by then.
_HOSTILE = """
import json, os, signal, socket, sys

def tried(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "done"

def connect(family, address):
    with socket.socket(family) as client:
        client.settimeout(5)
        client.connect(address)

def attack():
    wanted = json.loads(os.environ["LC_ATTACK"])
    with open("/proc/self/status") as status:
        lines = dict(line.strip().split(":", 1) for line in status)
    found = {
        "own file": tried(lambda: open(wanted["own"], "rb").read(4)),
        "other file": tried(lambda: open(wanted["other"], "rb").read(4)),
        "passwords": tried(lambda: open("/etc/passwd").read()),
        "list": tried(lambda: os.listdir(wanted["folder"])),
        "write": tried(lambda: open(wanted["new"], "w")),
        "remove": tried(lambda: os.unlink(wanted["other"])),
        "overwrite": tried(lambda: open(wanted["own"], "r+b")),
        "tcp": tried(lambda: connect(socket.AF_INET, tuple(wanted["tcp"]))),
        "metadata": tried(lambda: connect(socket.AF_INET, ("169.254.169.254", 80))),
        "unix": tried(lambda: connect(socket.AF_UNIX, wanted["unix"])),
        "signal": tried(lambda: os.kill(os.getppid(), 0)),
        "environment": tried(lambda: open(f"/proc/{os.getppid()}/environ").read()),
        "privileges": lines["NoNewPrivs"].strip(),
    }
    os.write(2, b"ATTACK " + json.dumps(found).encode() + b"\\n")
    os._exit(0)

class Trap:
    def find_spec(self, name, path=None, target=None):
        if name in ("runner.inspect", "runner.measure", "runner.serve.app"):
            attack()

sys.meta_path.insert(0, Trap())
"""
_REFUSED = "PermissionError"


def attacked(mode: str, arguments: list[str], code: Path, *, trust: Path, **wanted: Any) -> dict[str, str]:
    (code / "sitecustomize.py").write_text(_HOSTILE)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(code),
        "PYTHONPATH": str(code),
        "LC_ATTACK": json.dumps(wanted),
        "PUNA_TRUST": str(trust),
    }
    done = subprocess.run(
        [sys.executable, "-m", "runner", mode, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    line = next(line for line in done.stderr.splitlines() if line.startswith("ATTACK "))
    found: dict[str, str] = json.loads(line.removeprefix("ATTACK "))
    return found


@pytest.mark.parametrize("mode", ["inspect", "measure", "serve"])
def test_hostile_code_in_a_runner_reaches_its_own_file_only(mode: str, zoo: Zoo, tmp_path: Path) -> None:
    home, code = tmp_path / "home", tmp_path / "code"
    home.mkdir()
    code.mkdir()
    secret = home / "fence"
    secret.write_text("17")
    model = zoo("dense")
    arguments = {
        "inspect": [str(model)],
        "measure": ["--model", str(model)],
        "serve": ["--model", str(model), "--listen", f"unix:{home}/runner.sock"],
    }
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"{home}/discovery.sock")
        unix.listen()
        found = attacked(
            mode,
            arguments[mode],
            code,
            trust=home,
            own=str(model),
            other=str(secret),
            folder=str(home),
            new=str(home / "new"),
            tcp=tcp.getsockname(),
            unix=f"{home}/discovery.sock",
        )
    assert found.pop("own file") == "done"
    assert found.pop("privileges") == "1"
    if landlock_version() < 6:  # older kernels cannot confine signals
        found.pop("signal")
    assert found == dict.fromkeys(found, _REFUSED)
    assert secret.read_text() == "17"
