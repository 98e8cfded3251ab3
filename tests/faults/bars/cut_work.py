"""Work that is under way over a link while it is cut: the stream of a client, and a pull from a registry."""

import asyncio
import ctypes
import hashlib
import json
import math
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from tests.faults.bars.open_loop import question
from tests.faults.bars.rig import DEMO, Place, Rig, stamp
from tests.registry import RunningRegistry, push, running_registry
from tests.waiting import next_look

# Called after the cut with the times at which it began and ended, in seconds since 1970; returns figures.
Measure = Callable[[float, float], Awaitable[dict[str, float]]]

STREAM_TOKENS = 1000
STREAM_BEGINS_S_MAX = 30.0
PULLED_S_MAX = 90.0
ASKED_AGAIN_S = 0.5
# Hosts count what they have written, which is a MiB at a time. A pull takes about 20 s.
REGISTRY_RATE = "4mbit"
MORE_BYTES = 6 * 2**20
CUT_FROM_BYTES = 3 * 2**20
CLONE_NEWNET = 0x40000000


@asynccontextmanager
async def nothing(rig: Rig, number: int) -> AsyncIterator[Measure]:
    """Leave a link to the traffic of the cluster."""
    del rig, number

    async def measure(cut_unix_s: float, healed_unix_s: float) -> dict[str, float]:
        del cut_unix_s, healed_unix_s
        return {}

    yield measure


@asynccontextmanager
async def streaming(rig: Rig, number: int) -> AsyncIterator[Measure]:
    """Read a long answer on the client's machine; measures when its runner has freed the slot."""
    opened = await asyncio.to_thread(_connect_from, rig.services["client"].place, rig.gateways()[0])
    reader, writer = await asyncio.open_connection(sock=opened)
    body = json.dumps(question(number, tokens=STREAM_TOKENS)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {rig.key}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await asyncio.wait_for(reader.readuntil(b"data: "), STREAM_BEGINS_S_MAX)
    reading = asyncio.create_task(reader.read())

    async def measure(cut_unix_s: float, healed_unix_s: float) -> dict[str, float]:
        del healed_unix_s
        logs = [str(one.relative_to(rig.directory).with_suffix("")) for one in rig.directory.glob("host-*/logs/*.log")]
        ended = [event for name in logs for event in rig.events(name, "request.done") if event["reason"] == "cancelled"]
        freed_s = [at_s - cut_unix_s for event in ended if (at_s := stamp(event)) >= cut_unix_s]
        return {"freed_s": min(freed_s, default=math.inf)}

    try:
        yield measure
    finally:
        writer.transport.abort()
        await asyncio.gather(reading, return_exceptions=True)


def _connect_from(place: Place, address: tuple[str, int]) -> socket.socket:
    """Connect from another machine: a thread enters its namespace, and ends."""

    def connect() -> socket.socket:
        with Path("/run/netns", place.namespace).open() as namespace:
            assert ctypes.CDLL(None).setns(namespace.fileno(), CLONE_NEWNET) == 0
        return socket.create_connection(address)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(connect).result()


@contextmanager
def slow_registry(directory: Path, place: Place) -> Iterator[str]:
    """A registry on a machine with a slow line; yields it as hosts are allowed it."""
    inside = ["ip", "netns", "exec", place.namespace]
    line = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", REGISTRY_RATE, "burst", "32k", "latency", "1s"]
    subprocess.run([*inside, *line], check=True)
    with running_registry(directory, address=place.address, inside=inside) as registry:
        yield registry.url


async def _pull_steps(rig: Rig, model: str) -> AsyncIterator[dict[str, Any]]:
    body = {"model": model, "insecure": True}
    async with (
        httpx.AsyncClient(trust_env=False, timeout=None, headers={"x-api-key": rig.key}) as client,
        client.stream("POST", f"{rig.url}/api/pull", json=body) as answer,
    ):
        async for line in answer.aiter_lines():
            yield json.loads(line)


def _is_whole(file: Path, digest: str) -> bool:
    return hashlib.sha256(file.read_bytes()).hexdigest() == digest


@asynccontextmanager
async def pulling(rig: Rig, number: int) -> AsyncIterator[Measure]:
    """Pull a model, again where the pull fails, as clients do; measures what became of its bytes."""
    registry = RunningRegistry(host=rig.services["host-a"].environment["PUNA_REGISTRIES"].removeprefix("http://"))
    weights = DEMO.read_bytes() + bytes(MORE_BYTES + number)  # another model each time
    pushed = await asyncio.to_thread(push, registry, f"library/cut-{number}", weights)
    blob = rig.directory / "models" / "blobs" / f"sha256-{pushed.digest}"
    progress: list[tuple[float, int]] = []
    was_whole: list[bool] = []  # the file, when it was seen first

    async def pull_until_done() -> None:
        done = False
        while not done:
            with suppress(httpx.TransportError):
                async for step in _pull_steps(rig, pushed.name):
                    # The first line of a pull, before it has looked at what is here, has none.
                    if step.get("digest") == f"sha256:{pushed.digest}" and step.get("completed"):
                        progress.append((time.time(), step["completed"]))
                    if not was_whole and blob.exists():
                        was_whole.append(_is_whole(blob, pushed.digest))
                    done = step.get("status") == "success"
            await next_look(ASKED_AGAIN_S)

    task = asyncio.create_task(pull_until_done())

    async def measure(cut_unix_s: float, healed_unix_s: float) -> dict[str, float]:
        del cut_unix_s
        await asyncio.wait_for(task, PULLED_S_MAX)
        had = max(done for at_s, done in progress if at_s <= healed_unix_s)
        later_s = [at_s - healed_unix_s for at_s, done in progress if at_s > healed_unix_s and done > had]
        again = max((before - after for (_, before), (_, after) in pairwise(progress)), default=0)
        return {
            "pulled_before": had / len(weights),
            "goes_on_s": min(later_s, default=math.inf),
            "again_bytes": max(0, again),
            "wrong_files": [*was_whole, _is_whole(blob, pushed.digest)].count(False),
        }

    try:
        while not progress or progress[-1][1] < CUT_FROM_BYTES:
            await next_look()
        yield measure
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
