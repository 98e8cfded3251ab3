"""Bar 6: Redis is away for ten minutes under a constant load."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from tests.faults.bars.bar import Bar, Figure, Round, Turn, answered, at_least, at_most, quantile, tail
from tests.faults.bars.open_loop import OpenLoop
from tests.faults.bars.rig import Rig, running_rig

PER_SECOND = 5.0
FAKE = {"step_s": 0.02}
CONTROL_EVERY_S = 5.0
NORMAL_S_MAX = 5.0
CONTROL_S_MAX = 1.0


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    del numbers  # one outage: it is run as a whole
    async with running_rig(directory, replicas=2, fake=FAKE) as rig:
        await rig.control_until(load=True, deadline_s=60)
        async with OpenLoop(rig.gateways, PER_SECOND) as load:
            before = await asyncio.to_thread(rig.serving)
            await asyncio.sleep(max(10.0, size / 10))
            yield {"phase": "before", "load": load.take()}
            ended = rig.kill("redis")
            took = []
            end_s = time.monotonic() + size
            while time.monotonic() < end_s:
                begun_s = time.monotonic()
                answer = await rig.control(load=False)
                took.append((time.monotonic() - begun_s, answer.status_code if answer is not None else 0))
                await asyncio.sleep(min(CONTROL_EVERY_S, max(0.0, end_s - time.monotonic())))
            yield {
                "phase": "during",
                "fault": f"SIGKILL redis, away for {size} s",
                "proven": ended and not _accepts(rig),
                "load": load.take(),
                # The leader notices within the renewal of its lease; until then its commands are valid.
                "control": took[1:],
            }
            rig.start("redis")
            begun_s = time.monotonic()
            await rig.control_until(load=False, deadline_s=120)
            normal_s = time.monotonic() - begun_s
            same = len(await asyncio.to_thread(rig.serving) & before)
            await load.stop()
            yield {
                "phase": "after",
                "load": load.take(),
                "figures": {"normal_s": normal_s, "restarted": len(before) - same},
            }


def _accepts(rig: Rig) -> bool:
    """Return True if Redis' port takes a connection."""
    host, _, port = rig.address("redis").rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False


def _judge(rounds: list[Round]) -> list[Figure]:
    phases = {one["phase"]: one for one in rounds}
    if set(phases) != {"before", "during", "after"}:
        return [at_least("phases", len(phases), 3)]
    during, before, after = phases["during"], phases["before"]["load"], phases["after"]["figures"]
    load, control = during["load"], during["control"]
    share = tail(before["first_ms"])
    refused = sum(status == httpx.codes.SERVICE_UNAVAILABLE for _, status in control)
    return [
        *answered(load, "warm models", 99.9),
        at_most(f"first token, p{100 * share:g} against before", [_ratio(load, before, share)], 1.2, "×"),
        at_most("control calls that fail", [took_s for took_s, _ in control], CONTROL_S_MAX, "s"),
        at_least("control calls refused with 503", refused, len(control) or 1),
        at_most("runners restarted", [after["restarted"]], 0),
        at_most("normal after the return", [after["normal_s"]], NORMAL_S_MAX, "s"),
    ]


def _ratio(load: dict[str, Any], before: dict[str, Any], share: float) -> float:
    found, base = (quantile(one["first_ms"], share) for one in (load, before))
    return round(found / base, 3) if found is not None and base else float("inf")


REDIS_GONE = Bar(
    number=6,
    key="redis_down",
    title="Redis is away for ten minutes under a constant load",
    full=600,
    sample=12,
    unit="seconds",
    minutes=13,
    turn=Turn.ALONE,
    per_round=0,
    run=_run,
    judge=_judge,
)
