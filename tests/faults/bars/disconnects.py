"""Bar 10: clients disconnect at random moments, also while their prompt is evaluated; nothing of them stays."""

import asyncio
import json
import os
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from protos import cluster_pb2
from runner.client import RunnerClient
from tests.cluster import metric_sum
from tests.faults.bars.bar import Bar, Figure, Round, at_most, failures
from tests.faults.bars.open_loop import OpenLoop, question
from tests.faults.bars.rig import Rig, running_rig
from tests.waiting import next_look

STEP_S = 0.02
# A slot is free after the step that runs: one of a prompt takes 80 ms at most, as that of a tiny model does.
FAKE = {"step_s": STEP_S, "prompt_tokens_per_s": 400.0, "batch_tokens": 32}
AT_ONCE = 4
FREED_MS_MAX = 250.0
LEFT_S_MAX = 1.5  # moments of a disconnect, from the request on: the prompt takes about 0.3 s alone
LET_GO_S_MAX = 4.0  # counts of tasks are taken twice a second
HELD = ("gateway descriptors", "gateway tasks", "runner descriptors", "runner tasks")
SEED = 10
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST


class Slots:
    """Busy slots of the runner, as it pushes them, with the time of each change."""

    def __init__(self) -> None:
        self.busy = 0
        self.reached_s: list[tuple[float, int]] = []

    async def watch(self, client: RunnerClient) -> None:
        async for status in client.watch_load():
            self.take(status)

    def take(self, status: cluster_pb2.RunnerStatus) -> None:
        self.busy = status.slots_busy + status.queued
        self.reached_s.append((time.monotonic(), self.busy))

    async def wait(self, busy: int, *, deadline_s: float) -> bool:
        end_s = time.monotonic() + deadline_s
        while self.busy != busy and time.monotonic() < end_s:
            await next_look(0.002)
        return self.busy == busy


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    async with running_rig(directory, fake=FAKE) as rig:
        (path,) = (directory / "host-a" / "runners").glob("*/sock")
        draw, slots = random.Random(SEED + min(numbers, default=0)), Slots()
        async with RunnerClient(f"unix:{path}") as client:
            watching = asyncio.create_task(slots.watch(client))
            await slots.wait(0, deadline_s=30)
            await _wave(rig, slots, draw)  # opens what stays open
            before = await _held(rig)
            for _ in numbers:
                freed_ms = await _wave(rig, slots, draw)
                yield {
                    "fault": f"{AT_ONCE} disconnects",
                    "proven": len(freed_ms) == AT_ONCE,
                    "figures": {"freed_ms": freed_ms, "busy": slots.busy},
                }
            leaked = await _leaked(rig, before)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        load = OpenLoop(rig.gateways, 5.0)
        async with load:
            await asyncio.sleep(3)
        yield {"figures": {**leaked, "busy": slots.busy}, "load": load.take()}


async def _wave(rig: Rig, slots: Slots, draw: random.Random) -> list[float]:
    """Open streams, close each at a random moment; milliseconds until the runner has freed each of their slots."""
    host, port = rig.gateways()[0]
    body = json.dumps(question(draw.randrange(8), tokens=1000)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    opened = [await asyncio.open_connection(host, port) for _ in range(AT_ONCE)]
    for _, writer in opened:
        writer.write(head + body)
    if not await slots.wait(AT_ONCE, deadline_s=20):
        return []
    freed_ms = []
    for left, (_, writer) in zip(range(AT_ONCE - 1, -1, -1), opened, strict=True):
        await asyncio.sleep(draw.uniform(0, LEFT_S_MAX / AT_ONCE))
        if draw.random() < 0.5:
            peer: Any = writer.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        closed_s = time.monotonic()
        writer.transport.abort()
        if await slots.wait(left, deadline_s=10):
            freed_ms.append(1000 * (time.monotonic() - closed_s))
    return freed_ms


async def _held(rig: Rig) -> dict[str, float]:
    """Return the descriptors and the tasks that the gateway and the runner have."""
    ((runner_pid, runner),) = (await asyncio.to_thread(rig.runners)).items()
    pids = {"gateway": rig.running["gateway-0"].pid, "runner": runner_pid}
    urls = {"gateway": rig.url, "runner": f"http://{runner['metrics_address']}"}
    held: dict[str, float] = {}
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        for name, pid in pids.items():
            held[f"{name} descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
            page = (await client.get(f"{urls[name]}/metrics")).text
            held[f"{name} tasks"] = metric_sum(page, "puna_event_loop_tasks")
    return held


async def _leaked(rig: Rig, before: dict[str, float]) -> dict[str, float]:
    """Return what both hold beyond `before`, after they had some seconds to let go."""
    end_s = time.monotonic() + LET_GO_S_MAX
    while True:
        leaked = {name: max(0.0, count - before[name]) for name, count in (await _held(rig)).items()}
        if not any(leaked.values()) or time.monotonic() > end_s:
            return leaked
        await next_look(0.1)


def _judge(rounds: list[Round]) -> list[Figure]:
    figures = [one["figures"] for one in rounds]
    freed = [ms for one in figures for ms in one.get("freed_ms", ())]
    return [
        at_most("slot free after a disconnect, p99", freed, FREED_MS_MAX, "ms", share=0.99),
        *failures(rounds, "requests afterwards"),
        at_most("slots busy in the end", [figures[-1]["busy"]] if figures else [], 0),
        *(at_most(f"{name} leaked", [one[name] for one in figures if name in one], 0) for name in HELD),
    ]


DISCONNECTS = Bar(
    number=10,
    key="disconnect",
    title="clients disconnect at random moments",
    full=1000,
    sample=40,
    unit="disconnects",
    minutes=12,
    per_round=AT_ONCE,
    run=_run,
    judge=_judge,
)
