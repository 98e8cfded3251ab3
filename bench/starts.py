"""Starts of runners, forked and spawned, and of llama-server, in turns: `python -m bench.starts --model 1b`.

Every start loads the same model from a warm page cache. Times begin with the start of the process, and end when it
listens and when it can answer. Memory is read then, with the weights that are mapped and the buffers that were written.
Each round begins with another kind, because a start takes the pages that the one before has given back. At the end:
the bar S3.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from bench.engine.models import cache_folder, model_file
from bench.engine.servers import PEER, Sizes, find_llama_server, running_llama_server
from bench.machine import load_average
from bench.verdicts import Verdict
from common.telemetry.logs import configure_logs
from protos import cluster_pb2
from runner.client import RunnerClient
from runner.host.processes.children import runner_command
from runner.host.processes.spawning import spawn_runner
from runner.host.processes.zygote import Zygote, use_zygote

MIB = 1024 * 1024
READY_WITHIN_S = 300.0
LISTENS_S_MAX = 0.1
FORKED, SPAWNED = "forked", "spawned"
_SHOWN = ("Rss", "Pss", "Private_Dirty")


def main() -> int:
    """Start each kind in turns; print a line of JSON for each start, then the verdict."""
    options = _options()
    configure_logs(service="bench")
    model = options.file or model_file(options.model, cache_folder())
    _warm(model)
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_measure(model, Path(directory), options))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="1b", help="of the model zoo: 57m, 1b")
    parser.add_argument("--file", type=Path, help="a GGUF file instead")
    parser.add_argument("--rounds", type=int, default=10, help="starts of each kind")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--context-tokens", type=int, default=4096, help="of one slot")
    parser.add_argument(
        "--llama-server", type=Path, default=find_llama_server(), help="default: what its script has built"
    )
    return parser.parse_args()


def _warm(model: Path) -> None:
    with model.open("rb") as file:
        while file.read(16 * MIB):
            pass


async def _measure(model: Path, directory: Path, options: argparse.Namespace) -> None:
    sizes = Sizes(slots=options.slots, context_tokens=options.context_tokens, threads=len(os.sched_getaffinity(0)))
    kinds = deque([FORKED, SPAWNED] + [PEER] * (options.llama_server is not None))
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    none = Zygote(directory / "none.log")  # which never runs, so runners are spawned
    async with _zygote(directory) as zygote:
        for number in range(options.rounds):
            for kind in kinds:
                use_zygote(zygote if kind == FORKED else none)
                if kind == PEER:
                    figures = await asyncio.to_thread(_peer, options.llama_server, model, sizes)
                else:
                    figures = await _start(model, directory, sizes)
                found[kind].append(figures)
                line = {"round": number, "kind": kind, "load_average": load_average(), **figures}
                print(json.dumps(line), flush=True)
            kinds.rotate(1)
    print(judge(found).line())


def judge(found: Mapping[str, Sequence[Mapping[str, float]]]) -> Verdict:
    """Compare medians of all starts, by kind."""
    listens_s, ready_s, spawned_s = (
        median(one[name] for one in found[kind])
        for kind, name in ((FORKED, "listens_s"), (FORKED, "ready_s"), (SPAWNED, "ready_s"))
    )
    text = f"a runner listens after {1000 * listens_s:.0f} ms (bar {1000 * LISTENS_S_MAX:.0f})"
    text += f", loads in {ready_s:.2f} s (spawned {spawned_s:.2f})"
    if not found.get(PEER):
        return Verdict("S3", f"{text}; no llama-server", None)
    peer_s = median(one["ready_s"] for one in found[PEER])
    ratio = ready_s / peer_s
    text += f", llama-server in {peer_s:.2f}: {ratio:.2f} (bar 1)"
    return Verdict("S3", text, listens_s <= LISTENS_S_MAX and ratio <= 1)


@asynccontextmanager
async def _zygote(directory: Path) -> AsyncIterator[Zygote]:
    """Have a zygote."""
    zygote = Zygote(directory / "zygote.log")
    living = asyncio.create_task(zygote.run())
    try:
        await asyncio.wait_for(zygote.ready.wait(), READY_WITHIN_S)
        yield zygote
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)


async def _start(model: Path, directory: Path, sizes: Sizes) -> dict[str, float]:
    layout = {"slots": sizes.slots, "context_tokens": sizes.context_tokens, "threads": sizes.threads}
    words = ["--model", str(model), "--layout", json.dumps(layout), "--metrics-listen", "127.0.0.1:0"]
    started_s = time.perf_counter()
    spawned = await spawn_runner(
        runner_command("serve", words), log_path=directory / "runner.log", inherited=(), environment={}
    )
    try:
        hello = json.loads(await spawned.hello(READY_WITHIN_S))
        listens_s = time.perf_counter() - started_s
        async with RunnerClient(hello["address"]) as client, asyncio.timeout(READY_WITHIN_S):
            async for status in client.watch_load():
                if status.state == cluster_pb2.RUNNER_STATE_READY:
                    break
        ready_s = time.perf_counter() - started_s
        memory = await asyncio.to_thread(_memory, spawned.process.pid)
        return {
            "listens_s": round(listens_s, 4),
            "ready_s": round(ready_s, 4),
            **{f"{name.lower()}_mib": round(size / MIB, 1) for name, size in memory.items()},
        }
    finally:
        spawned.process.kill_group()
        await spawned.process.exited.wait()


def _memory(pid: int) -> dict[str, int]:
    """Return bytes of a process in RAM: all, its share of what several have, and its alone."""
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    sizes = {row[0].removesuffix(":"): int(row[1]) * 1024 for row in rows}
    return {name: sizes[name] for name in _SHOWN}


def _peer(program: Path, model: Path, sizes: Sizes) -> dict[str, float]:
    with running_llama_server(program, model, sizes, threads=sizes.threads) as server:
        return {"ready_s": round(server.load_s, 4)}


if __name__ == "__main__":
    raise SystemExit(main())
