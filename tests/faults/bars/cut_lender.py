"""The link between a runner and a device that another machine lends it is cut: its placement ends and comes back.

Real engines: a model over the devices of two of three machines, and one beside it on the third that never notices.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import httpx

from tests.e2e.namespaces import ENDLESS, Machines, request_body, running_machines
from tests.faults.bars.bar import Round
from tests.faults.bars.cuts import Chosen, Cut, described
from tests.faults.bars.rig import Place
from tests.waiting import next_look
from tools.model_zoo import build, shape
from tools.model_zoo.recipe import WeightType

WIDE, BESIDE = "wide", "one"
DEVICE_MIB = 512
SIZES = {"num_ctx": 49_152, "require_gpu": True, **ENDLESS}  # more than the devices of one machine hold
TOKENS = 96
ASKED_EVERY_S = 0.5
STREAM_S_MAX = 180.0
BEGUN_ROWS = 3


@dataclass
class Answered:
    """Rows of a stream with their times."""

    rows: list[tuple[float, dict[str, object]]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(str(row.get("response", "")) for _, row in self.rows)

    @property
    def is_whole(self) -> bool:
        last = self.rows[-1][1] if self.rows else {}
        return "error" not in last and last.get("eval_count") == TOKENS


async def cut_lender(directory: Path, chosen: Sequence[Chosen], cut_s: float) -> AsyncIterator[Round]:
    """Cut the link once for each choice, in one cluster."""
    models = directory / "models"
    models.mkdir(parents=True)
    base = replace(shape("57m"), weights=WeightType.F16, vocabulary_tokens=1024, kv_heads=8, context_tokens=1 << 16)
    for number, name in enumerate((WIDE, BESIDE)):
        build(replace(base, name=name, seed=5 + number), models)
    with ExitStack() as stack:
        running = running_machines(directory, models, names=("a", "b", "c"), device_mib=DEVICE_MIB)
        cluster = await asyncio.to_thread(stack.enter_context, running)
        for one in chosen:
            yield await _cut(cluster, one, cut_s)


async def _cut(cluster: Machines, chosen: Chosen, cut_s: float) -> Round:
    begun_s = time.monotonic()
    alone = Answered()
    await _read(cluster, alone)
    assert alone.is_whole, alone.rows[-1:]
    load_s = alone.rows[0][0] - begun_s
    head, lender = await asyncio.to_thread(_ends, cluster)
    (third,) = cluster.machines.keys() - {head, lender}
    await _move_beside(cluster, third)
    (here, there) = (Place(cluster.machines[name].address, cluster.machines[name].namespace) for name in (head, lender))
    _, way, kind = chosen
    cut = Cut.of_places(here, [there], way, kind)
    failures: list[str] = []
    beside = asyncio.create_task(_ask_beside(cluster, failures))
    answered = Answered()
    stream = asyncio.create_task(_read(cluster, answered))
    try:
        while len(answered.rows) < BEGUN_ROWS or not _of(cluster, BESIDE):
            await next_look()
        before, said = _of(cluster, BESIDE), answered.text
        packets = await cut.last(cut_s)
        await asyncio.wait_for(stream, STREAM_S_MAX)
    finally:
        beside.cancel()
        stream.cancel()
        await asyncio.gather(beside, stream, return_exceptions=True)
    gap_s = max(later - earlier for (earlier, _), (later, _) in pairwise(answered.rows))
    return {
        "fault": described(chosen),
        "proven": packets > 0,
        "figures": {
            "packets": packets,
            "load_s": load_s,
            "gap_s": gap_s,
            "lost_streams": int(not (answered.is_whole and answered.text.startswith(said))),
            "beside_failed": len(failures),
            "stopped": int(_of(cluster, BESIDE) != before),
        },
    }


def _of(cluster: Machines, model: str) -> set[int]:
    return {one["pid"] for _, one in cluster.runners() if one["model"] == f"{model}:latest"}


def _ends(cluster: Machines) -> tuple[str, str]:
    """Return the nodes of the runner of the wide model, and of the devices that are lent to it."""
    (head,) = [node for node, one in cluster.runners() if one["model"] == f"{WIDE}:latest"]
    (lender,) = {node["id"] for node in cluster.nodes() for one in node["devices"] if one["lent_to"]}
    return head, lender


async def _move_beside(cluster: Machines, node: str) -> None:
    """Have the other model in the RAM of this node, where nothing else needs room."""
    async with httpx.AsyncClient(timeout=60) as client:
        where = {"nodes": [node], "num_gpu": 0}
        (await client.put(f"{cluster.url}/puna/v1/placements/{BESIDE}", json=where)).raise_for_status()
        for unload in ({"keep_alive": 0}, {}):
            body = {"model": BESIDE, **unload}
            (await client.post(f"{cluster.url}/api/generate", json=body)).raise_for_status()


async def _read(cluster: Machines, answered: Answered) -> None:
    body = request_body(WIDE, **SIZES, num_predict=TOKENS, stream=True)
    async with (
        httpx.AsyncClient(timeout=240) as client,
        client.stream("POST", f"{cluster.url}/api/generate", json=body) as answer,
    ):
        async for line in answer.aiter_lines():
            answered.rows.append((time.monotonic(), json.loads(line)))


async def _ask_beside(cluster: Machines, failures: list[str]) -> None:
    """Ask the model on the third machine again and again."""
    async with httpx.AsyncClient(timeout=60) as client:
        while True:
            with suppress(httpx.TransportError):
                body = request_body(BESIDE)
                answer = await client.post(f"{cluster.url}/api/generate", json=body)
                failures += [] if answer.status_code == httpx.codes.OK else [answer.text[:200]]
            await next_look(ASKED_EVERY_S)
