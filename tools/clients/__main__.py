"""`python -m tools.clients [NAME…]`: install real clients, run each without a network, and write the table."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.clients.catalogue import CLIENTS, Client
from tools.clients.packages import ROOT, NotInstalled
from tools.clients.rows import Row, with_rows
from tools.conformance.__main__ import PAGE


class NoNamespace(Exception):
    """This machine does not let us make a network namespace; the text says why."""


def check_namespace() -> None:
    """Make a namespace and leave it.

    Raises:
        NoNamespace: it is not allowed, or the programs are missing.
    """
    for program in ("unshare", "ip"):
        if shutil.which(program) is None:
            raise NoNamespace(f"{program} is missing (apt-get install util-linux iproute2)")
    done = subprocess.run(_inside(["true"]), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoNamespace(f"no network namespace: {done.stderr.strip()}")


def run_clients(clients: Sequence[Client]) -> list[Row]:
    """Install the clients and run their tasks.

    Raises:
        NoNamespace: this machine cannot.
    """
    check_namespace()
    rows: list[Row] = []
    installed: list[Client] = []
    for client in clients:
        try:
            client.packages.install()
        except NotInstalled as error:
            rows += _not_installed(client, str(error))
        else:
            installed.append(client)
    if installed:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.json"
            names = [client.name for client in installed]
            command = [sys.executable, "-m", "tools.clients.inside", str(path), *names]
            done = subprocess.run(_inside(command), cwd=ROOT, check=False)
            if not path.exists():
                raise AssertionError(f"the cluster did not start, exit status {done.returncode}")
            rows += [Row(**row) for row in json.loads(path.read_text())]
    return rows


def _not_installed(client: Client, why: str) -> list[Row]:
    return [
        Row(client=client.name, version="", dialect=task.dialect, task=task.name, stream=stream, why=why)
        for task in client.tasks
        for stream in task.streams
    ]


def _inside(command: list[str]) -> list[str]:
    """Return the command that runs another one where there is nothing but a loopback interface."""
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--net", *rights, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]


def main() -> int:
    """Exit status 1: a client did not do its task."""
    names = [client.name for client in CLIENTS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"without any, all: {', '.join(names)}")
    asked = {_plain(name) for name in parser.parse_args().names}
    if unknown := asked - {_plain(name) for name in names}:
        parser.error(f"no client {', '.join(sorted(unknown))}; there are: {', '.join(map(_plain, names))}")
    rows = run_clients([client for client in CLIENTS if not asked or _plain(client.name) in asked])
    keys = [(client.name, task.dialect, task.name) for client in CLIENTS for task in client.tasks]
    PAGE.write_text(with_rows(PAGE.read_text(encoding="utf-8"), rows, keys), encoding="utf-8")
    failed = [row for row in rows if row.why]
    for row in failed:
        print(f"FAILED {row.key}, {'stream' if row.stream else 'whole'}: {row.why}", file=sys.stderr)
    print(f"{len(rows) - len(failed)} passed, {len(failed)} failed")
    return int(bool(failed))


def _plain(name: str) -> str:
    """Return a name as it is written on a command line."""
    return name.lower().replace(" ", "-").replace("(", "").replace(")", "").replace(",", "")


if __name__ == "__main__":
    raise SystemExit(main())
