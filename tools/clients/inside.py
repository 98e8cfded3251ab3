"""The part of a run that has no network: `python -m tools.clients.inside ROWS.json NAME…`."""

import argparse
import json
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tools.clients.catalogue import CLIENTS, Client
from tools.clients.packages import ROOT
from tools.clients.recorder import Recorder
from tools.clients.rows import Row
from tools.clients.stage import Place, open_place, open_stage

FAILURES = ROOT / "build" / "clients" / "failures"


def run(clients: list[Client]) -> Iterator[Row]:
    """Run every task of the clients on one cluster."""
    with open_stage() as recorder:
        for client in clients:
            yield from _run_client(client, recorder)


def _run_client(client: Client, recorder: Recorder) -> Iterator[Row]:
    for task in client.tasks:
        for stream in task.streams:
            why = remark = ""
            started_s = time.monotonic()
            with open_place(recorder) as place:
                try:
                    remark = client.do(task, stream=stream, place=place)
                except AssertionError as error:
                    why = str(error)
                    _keep(place, f"{client.name}, {task.dialect}, {task.name}, {'stream' if stream else 'whole'}", why)
            row = Row(
                client=client.name,
                version=client.packages.version,
                dialect=task.dialect,
                task=task.name,
                stream=stream,
                why=why,
                remark=remark,
            )
            took_s = time.monotonic() - started_s
            print(f"{row.why or 'ok'}: {row.key}, stream={stream}, {took_s:.0f} s", file=sys.stderr, flush=True)
            yield row


def _keep(place: Place, name: str, why: str) -> None:
    """Leave the requests of a failed task for a look at them."""
    exchanges = [
        {
            "method": one.method,
            "path": one.path,
            "status": one.status,
            "asked": one.asked.decode(errors="replace"),
            "answered": one.answered.decode(errors="replace"),
        }
        for one in place.recorder.exchanges
    ]
    FAILURES.mkdir(parents=True, exist_ok=True)
    path = FAILURES / (name.replace("/", "-") + ".json")
    path.write_text(json.dumps({"why": why, "exchanges": exchanges}, indent=1, ensure_ascii=False))


def main() -> None:
    """Write a row of each task as it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    interfaces = [name for _, name in socket.if_nameindex()]
    assert interfaces == ["lo"], f"not in a namespace with loopback only: {interfaces}"
    shutil.rmtree(FAILURES, ignore_errors=True)
    rows: list[Row] = []
    for row in run([client for client in CLIENTS if client.name in options.names]):
        rows.append(row)
        options.rows.write_text(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
