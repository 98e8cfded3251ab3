"""Bar 7: Redis forgets everything or its last writes, under load and with keys.

A replica that takes over without the last writes is a server that comes back with an older state: a real failover by
sentinels is shown by tests that are run as well, but not by a sample.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import httpx
import redis

from tests.faults.bars.bar import Bar, Figure, Round, at_most, failures
from tests.faults.bars.open_loop import OpenLoop
from tests.faults.bars.rig import COLD, MODEL, Rig, make_key, running_rig
from tests.faults.bars.suites import judge_tests, run_tests
from tests.waiting import next_look

PER_SECOND = 5.0
FAKE = {"step_s": 0.02}
REPLICAS = 2
FULL_VIEW_S_MAX = 10.0
SEEN_S_MAX = 60.0
WRITE_GAP_S_MAX = 15.0
DOOR_LOOKS = 10
# After many wrong keys the address itself is refused for a while.
REFUSED = frozenset({httpx.codes.UNAUTHORIZED, httpx.codes.TOO_MANY_REQUESTS})
DOOR_EVERY_S = 0.3
MODELS = (MODEL, COLD)


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    keys = directory / "keys.json"
    key = make_key("one", keys, "admin:cluster", "models:write")
    async with running_rig(directory, replicas=REPLICAS, fake=FAKE, key=key, PUNA_API_KEYS_FILE=str(keys)) as rig:
        await rig.control_until(load=False, deadline_s=60)
        async with OpenLoop(rig.gateways, PER_SECOND, key=key) as load:
            for number in numbers:
                runners = await asyncio.to_thread(rig.serving)
                what, lose = LOSSES[number % len(LOSSES)]
                if lose is _restore:  # the start of the cold model is what is lost
                    await rig.control_until(load=False, deadline_s=60)
                    await asyncio.to_thread(_save, rig)
                    await rig.control_until(load=True, deadline_s=60)
                known, fence = _placements(rig), _fence(rig)
                begun_s = time.monotonic()
                proven = await asyncio.to_thread(lose, rig)
                door = asyncio.create_task(_strangers_let_in(rig))
                seen_s = await _seen_again(rig, known, begun_s)
                await rig.control_until(load=number % 4 < 2, deadline_s=60)
                wrote_s = time.monotonic() - begun_s
                await asyncio.sleep(2)
                yield {
                    "fault": f"Redis: {what}",
                    "proven": proven and known[MODEL] >= REPLICAS and (known[COLD] > 0 or lose is not _restore),
                    "figures": {
                        "full_view_s": seen_s,
                        "write_gap_s": wrote_s,
                        "stopped": len(runners - await asyncio.to_thread(rig.serving)),
                        "fence_fell": int(_fence(rig) < fence),
                        "strangers": await door,
                    },
                    "load": load.take(),
                }
            await load.stop()
            yield {"load": load.take()}
    if size > REDIS_AMNESIA.sample and size - 1 in numbers:
        yield await run_tests(["tests/integration/scheduler/test_sentinel.py"])


def _client(rig: Rig) -> "redis.Redis":
    return redis.Redis("127.0.0.1", rig.services["redis"].port)


def _flush(rig: Rig) -> bool:
    """Empty it; True if the mark is gone."""
    with _client(rig) as client:
        client.set("mark", 1)
        client.flushall()
        return not client.exists("mark")


def _restart(rig: Rig) -> bool:
    """Kill it and start it without its data; True if the mark is gone."""
    with _client(rig) as client:
        client.set("mark", 1)
    has_ended = rig.kill("redis")
    rig.start("redis")
    end_s = time.monotonic() + SEEN_S_MAX
    while time.monotonic() < end_s:
        with suppress(redis.RedisError), _client(rig) as client:
            return has_ended and not client.exists("mark")
    return False


def _save(rig: Rig) -> None:
    """Write its data to its directory, as a replica would have them."""
    with _client(rig) as client:
        client.save()


def _restore(rig: Rig) -> bool:
    """Kill it and start it with the data that were saved; True if the later mark is gone and the data are not."""
    try:
        return _restart(rig) and _placements(rig)[MODEL] > 0
    finally:
        (rig.directory / "dump.rdb").unlink()


LOSSES: tuple[tuple[str, Callable[[Rig], bool]], ...] = (
    ("FLUSHALL", _flush),
    ("restarted empty", _restart),
    ("restarted without its last writes", _restore),
)


def _placements(rig: Rig) -> Counter[str]:
    """Count the placements that Redis has, by model."""
    with suppress(redis.RedisError), _client(rig) as client:
        records = client.hgetall("{sched}:placements")
        return Counter({name: sum(f"{name}:latest".encode() in one for one in records.values()) for name in MODELS})
    return Counter()


def _fence(rig: Rig) -> int:
    """Highest number that the host has obeyed."""
    return max((int(one["number"]) for one in rig.events("host-a", "fence.raised")), default=0)


async def _seen_again(rig: Rig, known: Counter[str], begun_s: float) -> float:
    """Time until Redis has every placement again and a leader."""
    while (took_s := time.monotonic() - begun_s) < SEEN_S_MAX:
        if await asyncio.to_thread(lambda: _placements(rig) >= known and bool(rig.leader())):
            return took_s
        await next_look()
    return float("inf")


async def _strangers_let_in(rig: Rig) -> int:
    """Send requests with a key that does not exist; return the number of those that were not refused."""
    let_in = 0
    async with httpx.AsyncClient(trust_env=False, timeout=30, headers={"x-api-key": "sk-puna-none"}) as client:
        for _ in range(DOOR_LOOKS):
            answer = await client.post(f"{rig.url}/api/generate", json={"model": MODEL, "prompt": "x"})
            let_in += answer.status_code not in REFUSED
            await next_look(DOOR_EVERY_S)
    return let_in


def _judge(rounds: list[Round]) -> list[Figure]:
    figures = [one["figures"] for one in rounds if "figures" in one]
    return [
        at_most("every placement known again", [one["full_view_s"] for one in figures], FULL_VIEW_S_MAX, "s"),
        at_most("first command done", [one["write_gap_s"] for one in figures], WRITE_GAP_S_MAX, "s"),
        at_most("runners stopped", [one["stopped"] for one in figures], 0),
        at_most("fences that fell", [one["fence_fell"] for one in figures], 0),
        at_most("requests without a valid key that were not refused", [one["strangers"] for one in figures], 0),
        *failures(rounds, "requests with a key"),
        *(judge_tests(rounds) if any("suite" in one for one in rounds) else ()),
    ]


REDIS_AMNESIA = Bar(
    number=7,
    key="redis_amnesia",
    title="Redis forgets everything, by FLUSHALL and by a restart, or its last writes; failover",
    full=42,
    sample=3,
    unit="losses",
    minutes=5,
    clusters=2,
    run=_run,
    judge=_judge,
)
