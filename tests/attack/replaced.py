"""Scripts in the place of a runner's modes, started by a real host as it starts runners: by its zygote, confined.

The host is the attacker's own node, with the code of the cluster; what a mode does once it is confined is replaced.
"""

import asyncio
import json
import re
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from common.sandbox.confinement import NETWORK_VERSION, landlock_version
from protos import cluster_pb2
from tests.attack.children import judged
from tests.attack.stage import QUESTION, Attack, NotRunnable, Outcome, Stage
from tests.e2e.namespaces import DISCOVERY_PORT
from tests.integration.runner.test_sandbox import HOSTILE, WANTED, attempts_in
from tests.waiting import next_look
from tools.model_zoo import build

PORT = 7713
MODEL = "evil"
STARTED_WITHIN_S = 90.0
LOGS_BYTES_MAX = 512 * 2**20
# Twice what a child may print, and a host.
HOST_BYTES_MAX = 512 * 2**20
ADDRESSES_MAX = 6 * 2**30  # of a host that takes all that a child prints, lest it takes the machine's memory

ATTACK = """

def run(args):
    scope = {{}}
    exec({code!r}, scope)
    scope["attack"]()
"""
PRINT = """

def run(args):
    import os
    while True:
        os.write(2, b"x" * 65536)
        os.write(1, b"x" * 65536)
"""

# 64 MiB a second.
LOG = """

def run(args):
    import os, time
    while True:
        os.write(2, b"x" * 2**20)
        time.sleep(1 / 64)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvilHost:
    """A running host with replaced code."""

    home: Path
    pid: int

    def peak_bytes(self) -> int:
        """Return the most memory that it had."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    def logs(self) -> str:
        """Return what its runners printed."""
        return "\n".join(path.read_text(errors="replace") for path in (self.home / "logs").glob("runner-*"))


@asynccontextmanager
async def evil_host(
    stage: Stage, module: str, addition: str, *, weights: str = "dense", **variables: str
) -> AsyncIterator[EvilHost]:
    """Run node e, on which a module of the runner has an addition. No other node has its model.

    `weights`: others for each attack, because a model that failed often is not tried again.
    """
    stage.insider("node/e")
    own = stage.directory / "e"
    shutil.rmtree(own, ignore_errors=True)
    code, models = own / "code", own / "models"
    shutil.copytree(stage.tree / "runner", code / "runner", ignore=shutil.ignore_patterns("__pycache__"))
    with (code / "runner" / module).open("a") as file:
        file.write(addition)
    models.mkdir()
    shutil.copy(build(weights, stage.directory), models / f"{MODEL}.gguf")  # with weights that no other node has
    environment = stage.environment(stage.second) | {
        "PUNA_NODE_ID": "e",
        "PUNA_HOME": str(own),
        "PUNA_NODE_LISTEN": f"{stage.address}:{PORT}",
        "PUNA_RUNNER_LISTEN": f"{stage.address}:0",
        "PUNA_DISCOVERY_ADDRESS": stage.discovery,
        "PYTHONPATH": f"{code}:{stage.path}",
        **({"PUNA_TRUST": str(stage.trust / "node" / "e")} if stage.has_certificates else {}),
        **variables,
    }
    with (own / "log").open("wb") as log:
        command = ["prlimit", f"--as={ADDRESSES_MAX}", sys.executable, "-m", "runner", "host"]
        host = await asyncio.create_subprocess_exec(*command, cwd=code, env=environment, stdout=log, stderr=log)
    try:
        yield EvilHost(home=own, pid=host.pid)
    finally:
        if host.returncode is None:
            host.terminate()
        try:
            await asyncio.wait_for(host.wait(), 60)
        except TimeoutError:
            host.kill()


async def _model(stage: Stage, *, known: bool) -> cluster_pb2.Model:
    """Return the model of node e, once the host has inspected it; `known`: so that it can be used."""
    for _ in range(int(STARTED_WITHIN_S / 0.2)):
        models = [model for node in (await stage.inventory()).nodes if node.id == "e" for model in node.models]
        found = [one for one in models if (one.HasField("description") if known else one.error)]
        if found:
            return found[0]
        await next_look(0.2)
    raise AssertionError(f"node e has not inspected its model: {(stage.directory / 'e' / 'log').read_text()[-800:]}")


async def take_the_place_of_serve(stage: Stage) -> Outcome:
    """Have a script in the place of `serve`, and a request for its model; what the script reaches is damage."""
    if landlock_version() < NETWORK_VERSION:
        raise NotRunnable(f"this kernel has Landlock {landlock_version()}, not {NETWORK_VERSION}")
    own = stage.directory / "e"
    secrets = {name: own / f"{name}.copy" for name in ("fence", "pepper", "another model", "key of the node")}
    listening = stage.directory / "e.sock"
    wanted = {
        "own": str(own / "models" / f"{MODEL}.gguf"),
        "others": {name: str(path) for name, path in secrets.items()},
        "folder": str(own),
        "new": str(own / "new"),
        "connects": {"discovery": [stage.first.address, DISCOVERY_PORT]},
        "unix": str(listening),
    }
    listening.unlink(missing_ok=True)
    script = ATTACK.format(code=HOSTILE.partition("class Trap")[0])
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listening))
        server.listen()
        async with evil_host(stage, "serve/app.py", script, **{WANTED: json.dumps(wanted)}) as host:
            for path in secrets.values():
                path.write_text("secret")
            await _model(stage, known=True)
            async with stage.client() as client:
                with suppress(httpx.TimeoutException):
                    await client.post("/api/chat", json=QUESTION | {"model": MODEL}, timeout=30)
            for _ in range(100):
                if "ATTACK " in host.logs():
                    break
                await next_look(0.1)
            found = attempts_in(host.logs())
    reached = [attempt for attempt, end in judged(found, "serve") if end == "done"]
    return Outcome(bool(reached), f"{len(found)} attempts; reached: {', '.join(reached) or 'nothing'}")


async def fill_the_disk(stage: Stage) -> Outcome:
    """Have a script in the place of `serve` print for ever to its log; damage is the space that the log takes."""
    async with evil_host(stage, "serve/app.py", LOG, weights="tied") as host:
        await _model(stage, known=True)
        async with stage.client() as client:
            # Otherwise another node fetches a model that node e has failed to load before, and answers.
            (await client.put(f"/puna/v1/placements/{MODEL}", json={"nodes": ["e"]})).raise_for_status()
            with suppress(httpx.TimeoutException):
                await client.post("/api/chat", json=QUESTION | {"model": MODEL}, timeout=40)
            await client.delete(f"/puna/v1/placements/{MODEL}")
        printed = sum(path.stat().st_size for path in (host.home / "logs").glob("runner-*"))
        assert printed, "nothing was printed"
    return Outcome(printed > LOGS_BYTES_MAX, f"after 40 s its logs have {printed // 2**20} MiB")


async def print_without_end(stage: Stage) -> Outcome:
    """Have a script in the place of `inspect` print for ever; damage is memory of the host, or no answer of it."""
    async with evil_host(stage, "inspect.py", PRINT) as host:
        try:
            said = (await _model(stage, known=False)).error
        except AssertionError:
            said = ""
        peak_bytes = host.peak_bytes()
    seen = f"the host took {peak_bytes // 2**20} MiB at most; the model: {said[-100:] or 'no word of it'}"
    return Outcome(peak_bytes > HOST_BYTES_MAX or not said, seen)


ATTACKS = (
    Attack(
        name="script in the place of `serve`, started by a host",
        row="3", input="files of the node, discovery, sockets, signals, /proc, processes", act=take_the_place_of_serve,
    ),
    Attack(name="child that prints without end", row="3", input="both streams of `inspect`", act=print_without_end),
    Attack(name="runner that prints without end", row="3", input="64 MiB/s of log by `serve`", act=fill_the_disk),
)  # fmt: skip
