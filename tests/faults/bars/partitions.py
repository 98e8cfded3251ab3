"""Bar 9: each link of the cluster is cut, both ways and one way, with silence and with RST, for 30 s.

Each service, a client and a registry are in network namespaces of their own on one bridge; a cut is a rule of iptables
with a counter.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from itertools import product
from pathlib import Path

from tests.faults.bars.bar import Bar, Figure, Round, answered, at_least, at_most
from tests.faults.bars.cut_lender import cut_lender
from tests.faults.bars.cut_work import Measure, nothing, pulling, slow_registry, streaming
from tests.faults.bars.cuts import KINDS, STREAM_S_MAX, WAYS, Chosen, Cut, cannot_cut, described, machine_each
from tests.faults.bars.open_loop import OpenLoop, total
from tests.faults.bars.rig import Rig, Service, make_key, running_rig
from tests.faults.bars.split_redis import split
from tests.registry import BINARY

PER_SECOND = 4.0
FAKE = {"step_s": 0.04}  # the stream of `cut_work` would outlast the cut
CUT_S = 30.0
SAMPLE_CUT_S = 10.0
HEALED_S_MAX = 5.0
SILENT_FREED_S_MAX = 25.0
RESET_FREED_S_MAX = 1.0
KNOWN_S_MAX = 10.0
LINKS = (
    ("gateway-0", "host-a"),
    ("gateway-0", "scheduler-0"),
    ("gateway-0", "redis"),
    ("scheduler-0", "redis"),
    ("scheduler-0", "host-a"),
    ("scheduler-0", "discovery"),
    ("host-a", "discovery"),
    ("client", "gateway-0"),
    ("registry", "host"),
)
# What is under way over the link when it is cut.
WORK: dict[str, Callable[[Rig, int], AbstractAsyncContextManager[Measure]]] = {"client": streaming, "registry": pulling}
REDIS_LINK, LENDER_LINK = ("redis", "replica"), ("runner", "lender")
CUTS: list[Chosen] = [(link, way, kind) for kind, way, link in product(KINDS, WAYS, LINKS)]
CUTS += [(link, way, kind) for link, kind, way in product((REDIS_LINK, LENDER_LINK), KINDS, WAYS)]
SERVICES = ("redis", "discovery", "scheduler-0", "gateway-0", "host-a", "host-b")
OUTSIDE = ("client", "registry")


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    # A sample takes cuts from all over the matrix.
    chosen = CUTS[:: max(1, len(CUTS) // size)][:size]
    if plain := [number for number in numbers if chosen[number][0] in LINKS]:
        async for found in _cut_each(directory, chosen, plain, CUT_S if size > 1 else SAMPLE_CUT_S):
            yield found
    for number in numbers:
        if chosen[number][0] == REDIS_LINK:  # each in a cluster of its own: a failover swaps the roles of its servers
            yield await split(directory / str(number), chosen[number], CUT_S)
    if lent := [chosen[number] for number in numbers if chosen[number][0] == LENDER_LINK]:
        async for found in cut_lender(directory / "lent", lent, CUT_S):
            yield found


async def _cut_each(
    directory: Path, chosen: Sequence[Chosen], numbers: Sequence[int], cut_s: float
) -> AsyncIterator[Round]:
    async with AsyncExitStack() as stack:
        places = stack.enter_context(machine_each([*SERVICES, *OUTSIDE]))
        registry = stack.enter_context(slow_registry(directory / "registry", places["registry"]))
        keys = directory / "keys.json"  # with keys, the gateway talks to Redis
        key = make_key("one", keys, "admin:cluster", "models:write")
        rig = await stack.enter_async_context(
            running_rig(
                directory,
                replicas=2,
                nodes=("a", "b"),
                fake=FAKE,
                places=places.__getitem__,
                key=key,
                PUNA_API_KEYS_FILE=str(keys),
                PUNA_REGISTRIES=registry,
            )
        )
        for name in OUTSIDE:
            rig.services[name] = Service(module=(), environment={}, port=0, place=places[name])
        await rig.control_until(load=True, deadline_s=60)
        async with OpenLoop(rig.gateways, PER_SECOND, key=key) as load:
            for number in numbers:
                yield await _cut(rig, load, chosen[number], number, cut_s)
            await load.stop()
            yield {"load": load.take()}


async def _cut(rig: Rig, load: OpenLoop, chosen: Chosen, number: int, cut_s: float) -> Round:
    link, way, kind = chosen
    runners = await asyncio.to_thread(rig.serving)
    cut = Cut.of_link(rig, link, way, kind)
    async with WORK.get(link[0], nothing)(rig, number) as measure:
        load.take()
        cut_unix_s = time.time()
        packets = await cut.last(cut_s)
        healed_unix_s = time.time()
        during = load.take()
        await rig.control_until(load=False, deadline_s=90)
        healed_s = time.time() - healed_unix_s
        measured = await measure(cut_unix_s, healed_unix_s)
    if "freed_s" in measured:  # a process gets the reset of what it sends itself
        is_reset = way != "there" and kind[-1] == "tcp-reset"
        measured["reset_freed_s" if is_reset else "silent_freed_s"] = measured.pop("freed_s")
    await rig.control_until(load=True, deadline_s=90)
    await rig.serves(2)
    return {
        "fault": described(chosen),
        "proven": packets > 0,
        "figures": {
            "packets": packets,
            "healed_s": healed_s,
            "stopped": len(runners - await asyncio.to_thread(rig.serving)),
            "failed": during["refused"] + sum(during["other"].values()),
            **measured,
        },
        "load": during,
    }


def _judge(rounds: list[Round]) -> list[Figure]:
    figures = [one["figures"] for one in rounds if "figures" in one]
    load = total([one["load"] for one in rounds if "load" in one])

    def measured(name: str) -> list[float]:
        return [one[name] for one in figures if name in one]

    outside = {
        "slot of a client free after silence": ("silent_freed_s", SILENT_FREED_S_MAX, "s"),
        "slot of a client free after a reset of the gateway": ("reset_freed_s", RESET_FREED_S_MAX, "s"),
        "pull goes on after the cut": ("goes_on_s", HEALED_S_MAX, "s"),
        "bytes pulled twice": ("again_bytes", 0, ""),
        "pulled models visible too early or damaged": ("wrong_files", 0, ""),
        "lost placements known again": ("known_s", KNOWN_S_MAX, "s"),
        "streams over lent devices not resumed": ("lost_streams", 0, ""),
        "requests of a model beside them failed": ("beside_failed", 0, ""),
    }
    refusals = measured("refusals")
    return [
        at_most("longest answer", [ms / 1000 for ms in load["whole_ms"]], STREAM_S_MAX, "s"),
        at_most("streams that hung or ended without an end", [load["other"]["hung"] + load["other"]["truncated"]], 0),
        *answered(load, "warm model", 99.9),
        at_most("healed after the cut", measured("healed_s"), HEALED_S_MAX, "s"),
        at_most("runners that were stopped", [one["stopped"] for one in figures], 0),
        *(
            at_most(title, measured(name), limit, unit)
            for title, (name, limit, unit) in outside.items()
            if len(figures) >= PARTITIONS.full or measured(name)
        ),
        *([at_least("commands of an old leader refused, fewest", min(refusals), 1)] if refusals else []),
    ]


PARTITIONS = Bar(
    number=9,
    key="partition",
    title="each link is cut for 30 s: both ways and one way, silent and with RST",
    full=len(CUTS),
    sample=1,
    unit="cuts",
    minutes=22,
    clusters=3,
    run=_run,
    judge=_judge,
    needs=lambda: cannot_cut() or ("" if BINARY else "docker-registry is not installed (make deps-system)"),
)
