"""Bar 12: two tenants, one of which asks for five times what the model can answer."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.faults.bars.bar import Bar, Figure, Round, at_least, at_most, quantile, tail
from tests.faults.bars.open_loop import OpenLoop, ask, question
from tests.faults.bars.rig import Rig, make_key, running_rig

FAKE = {"step_s": 0.02}
SLOTS = 8
FACTOR = 5.0
QUIET_PER_SECOND = 4.0  # at full size enough answers for a 99th percentile
RSS_MORE_BYTES_MAX = 64 * 2**20


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    del numbers  # the parts are compared with each other
    keys = directory / "keys.json"
    quiet_key, noisy_key = make_key("quiet", keys, "admin:cluster"), make_key("noisy", keys)
    async with running_rig(directory, fake=FAKE, key=quiet_key, PUNA_API_KEYS_FILE=str(keys)) as rig:
        peak = await _peak(rig, noisy_key, size / 2)
        quiet = OpenLoop(rig.gateways, QUIET_PER_SECOND, key=quiet_key)
        async with quiet:
            await asyncio.sleep(size)
        yield {"phase": "alone", "load": quiet.take(), "figures": {"peak_per_s": peak}}
        before = _rss_bytes(rig)
        noisy = OpenLoop(rig.gateways, FACTOR * peak, key=noisy_key)
        beside = OpenLoop(rig.gateways, QUIET_PER_SECOND, key=quiet_key)
        async with beside, noisy:
            begun_s = time.monotonic()
            await asyncio.sleep(2)
            warm = noisy.take()
            quiet_part = beside.take()
            begun_s = time.monotonic()
            await asyncio.sleep(size)
            found, others = noisy.take(), beside.take()
            took_s = time.monotonic() - begun_s
            more = _rss_bytes(rig) - before
        yield {
            "phase": "overload",
            "fault": f"{FACTOR:g} × {peak:.1f} requests/s",
            "proven": found["refused"] > 0,
            "load": found,
            "figures": {"goodput_per_s": (found["ok"] + others["ok"]) / took_s, "more_bytes": more},
        }
        yield {"phase": "beside", "load": others}
        yield {"phase": "edges", "load": warm}
        yield {"phase": "edges", "load": quiet_part}
        yield {"phase": "edges", "load": noisy.take()}
        yield {"phase": "edges", "load": beside.take()}


async def _peak(rig: Rig, key: str, duration_s: float) -> float:
    """Answers a second that clients get who never let the queue run dry."""
    end_s, host_port, answered = time.monotonic() + duration_s, rig.gateways()[0], 0

    async def client(number: int) -> None:
        nonlocal answered
        while time.monotonic() < end_s:
            answer = await ask(*host_port, question(number), due_s=time.perf_counter(), key=key)
            assert answer.kind == "ok", answer
            answered += time.monotonic() < end_s

    await asyncio.gather(*(client(number) for number in range(2 * SLOTS)))
    return answered / duration_s


def _rss_bytes(rig: Rig) -> int:
    status = Path(f"/proc/{rig.running['gateway-0'].pid}/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


def _judge(rounds: list[Round]) -> list[Figure]:
    phases = {one["phase"]: one for one in rounds}
    if not {"alone", "overload", "beside"} <= set(phases):
        return [at_least("phases", len(phases), 3)]
    alone, beside, overload = phases["alone"], phases["beside"]["load"], phases["overload"]
    share = tail(beside["whole_ms"])
    base = quantile(alone["load"]["whole_ms"], share)
    ratio = [ms / base for ms in beside["whole_ms"]] if base else []
    goodput = 100 * overload["figures"]["goodput_per_s"] / alone["figures"]["peak_per_s"]
    return [
        at_least("goodput of the peak", round(goodput, 1), 90, "%"),
        at_most("refusals, p99", overload["load"]["refused_ms"], 50, "ms", share=0.99),
        at_most("other ends than answers and refusals with Retry-After", [sum(overload["load"]["other"].values())], 0),
        at_most("quiet tenant refused or failed", [beside["refused"] + sum(beside["other"].values())], 0),
        at_most(f"quiet tenant's answers, p{100 * share:g} against alone", ratio, 1.5, "×", share=share),
        at_most(
            "gateway's memory, more", [overload["figures"]["more_bytes"] / 2**20], RSS_MORE_BYTES_MAX / 2**20, "MiB"
        ),
    ]


OVERLOAD = Bar(
    number=12,
    key="overload",
    title="five times the capacity, two tenants",
    full=130,
    sample=10,
    unit="seconds",
    minutes=7,
    per_round=0,
    run=_run,
    judge=_judge,
)
