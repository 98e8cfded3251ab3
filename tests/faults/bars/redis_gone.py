"""Bar 6: Redis, then the whole control plane is away for ten minutes under a constant load."""

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from tests.faults.bars.bar import Bar, Figure, Round, answered, at_least, at_most, quantile, tail
from tests.faults.bars.open_loop import QUESTIONS, OpenLoop, ask, question
from tests.faults.bars.rig import Rig, running_rig
from tests.waiting import wait_until

PER_SECOND = 5.0
FAKE = {"step_s": 0.02}
CONTROL_EVERY_S = 5.0
NORMAL_S_MAX = 5.0
CONTROL_S_MAX = 1.0


# Away in the second outage; a gateway is restarted halfway, and has its routes from disk.
CONTROL_PLANE = ("redis", "scheduler-0", "discovery")


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    del numbers  # two outages: they are run as a whole
    async with running_rig(directory, replicas=2, gateways=2, fake=FAKE) as rig:
        await rig.control_until(load=True, deadline_s=60)
        away: set[str] = set()  # a balancer sends them nothing
        async with OpenLoop(lambda: rig.gateways(without=away), PER_SECOND) as load:
            before = await asyncio.to_thread(rig.serving)
            await asyncio.sleep(max(10.0, size / 5))  # at full size long enough for a 99th percentile
            yield {"phase": "before", "load": load.take()}
            ended = rig.kill("redis")
            took = await _command(rig, size)
            yield {
                "phase": "redis",
                "fault": f"SIGKILL redis, away for {size} s",
                "proven": ended and not _accepts(rig, "redis"),
                "load": load.take(),
                # The leader notices within the renewal of its lease; until then its commands are valid.
                "control": took[1:],
            }
            rig.start("redis")
            begun_s = time.monotonic()
            await rig.control_until(load=False, deadline_s=120)
            normal_s = time.monotonic() - begun_s
            await rig.control_until(load=True, deadline_s=60)
            yield {"phase": "between", "load": load.take()}
            all_ended = [rig.kill(name) for name in CONTROL_PLANE]
            took = await _command(rig, size / 2)
            away.add("gateway-1")
            own = await _restart(rig, "gateway-1", load)
            away.clear()
            took += await _command(rig, size / 2)
            yield {
                "phase": "control plane",
                "fault": f"SIGKILL {', '.join(CONTROL_PLANE)}, away for {size} s; SIGTERM gateway-1 halfway",
                "proven": all(all_ended) and not _accepts(rig, "redis"),
                "load": load.take(),
                "control": took,
                "figures": {"own": own},
            }
            for name in CONTROL_PLANE:
                rig.start(name)
            await rig.control_until(load=False, deadline_s=120)
            same = len(await asyncio.to_thread(rig.serving) & before)
            await load.stop()
            yield {
                "phase": "after",
                "load": load.take(),
                "figures": {"normal_s": normal_s, "restarted": len(before) - same},
            }


async def _command(rig: Rig, seconds: float) -> list[tuple[float, int]]:
    """Ask for a load now and then; the duration and the status of each answer."""
    took = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        begun_s = time.monotonic()
        answer = await rig.control(load=False)
        took.append((time.monotonic() - begun_s, answer.status_code if answer is not None else 0))
        await asyncio.sleep(min(CONTROL_EVERY_S, max(0.0, end_s - time.monotonic())))
    return took


async def _restart(rig: Rig, name: str, load: OpenLoop) -> int:
    """Restart a gateway as a rolling update does; how many questions it answers as before, by itself."""
    assert await asyncio.to_thread(rig.kill, name, signal.SIGTERM)
    rig.start(name)
    await asyncio.to_thread(wait_until, lambda: _accepts(rig, name), deadline_s=60, what=f"{name} listens again")
    host, _, port = rig.address(name).rpartition(":")
    answers = [await ask(host, int(port), question(number), due_s=time.perf_counter()) for number in range(QUESTIONS)]
    return sum(one.kind == "ok" and one.text == load.expected[number] for number, one in enumerate(answers))


def _accepts(rig: Rig, name: str) -> bool:
    """Return True if a service's port takes a connection."""
    host, _, port = rig.address(name).rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False


def _judge(rounds: list[Round]) -> list[Figure]:
    phases = {one["phase"]: one for one in rounds}
    if set(phases) != {"before", "redis", "between", "control plane", "after"}:
        return [at_least("phases", len(phases), 5)]
    during, before, after = phases["redis"], phases["before"]["load"], phases["after"]["figures"]
    load, control, plane = during["load"], during["control"], phases["control plane"]
    share = tail(before["first_ms"])
    return [
        *answered(load, "warm models", 99.9),
        at_most(f"first token, p{100 * share:g} against before", [_ratio(load, before, share)], 1.2, "×"),
        *_refused(control, "control calls"),
        *answered(plane["load"], "control plane away, warm models", 100),
        *_refused(plane["control"], "control plane away, control calls"),
        at_least("answers of the gateway that was restarted meanwhile", plane["figures"]["own"], QUESTIONS),
        at_most("runners restarted", [after["restarted"]], 0),
        at_most("normal after the return", [after["normal_s"]], NORMAL_S_MAX, "s"),
    ]


def _refused(control: list[tuple[float, int]], what: str) -> list[Figure]:
    refused = sum(status == httpx.codes.SERVICE_UNAVAILABLE for _, status in control)
    return [
        at_most(f"{what} that fail", [took_s for took_s, _ in control], CONTROL_S_MAX, "s"),
        at_least(f"{what} refused with 503", refused, len(control) or 1),
    ]


def _ratio(load: dict[str, Any], before: dict[str, Any], share: float) -> float:
    found, base = (quantile(one["first_ms"], share) for one in (load, before))
    return round(found / base, 3) if found is not None and base else float("inf")


REDIS_GONE = Bar(
    number=6,
    key="redis_down",
    title="Redis, then the whole control plane is away for ten minutes under a constant load",
    full=600,
    sample=12,
    unit="seconds",
    minutes=24,
    per_round=0,
    run=_run,
    judge=_judge,
)
