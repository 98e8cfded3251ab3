"""Bars of saved conversations over several replicas and nodes: K2, K4 and K7 of `bench.kv`."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.agent_trace import AgentRequest, agent_trace
from bench.verdicts import Setup, Verdict, quantile
from common.clock import NS_PER_S
from common.closing import closing
from common.spec.pace import RunnerPace
from common.trust.roles import runner_peer
from gateway.converters.routes import holdings_of
from gateway.core.dispatch.prompt_prefixes import name_prefixes
from gateway.core.dispatch.replica_choice import ReplicaCandidate, ReplicaNeed, choose_replica
from protos import cluster_pb2, runner_pb2
from runner.client import RunnerClient
from runner.core.sequence.sequence_names import SequenceNames
from runner.core.sequence.slots import common_prefix_tokens
from runner.core.states.gate import Tier
from tests.integration.host.node import Node, running_node
from tests.integration.runner.harness import Answer, Harness, running
from tests.integration.runner.saved_states import connected, count, open_node
from tests.waiting import until

K2_BAR, K4_BAR, K7_BAR = 0.1, 1.05, 0.99
REPLICAS, SLOTS = 4, 2
K4_ROUNDS = 5  # of a trace without tiers and one with them
K4_ANSWER_TOKENS = 32  # states are saved between the steps of answers, not of prompts
DISK_BYTES_PER_S = 50_000_000
CGROUPS = Path("/sys/fs/cgroup/blkio")
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Served:
    """One request of a trace."""

    prompt_tokens: int
    cached_tokens: int
    first_token_s: float


class Replica:
    """An engine with its node, as a gateway sees it."""

    def __init__(self, key: str, engine: Harness, *, bytes_per_token: float) -> None:
        self.key = key
        self.engine = engine
        self._bytes_per_token = bytes_per_token

    def candidate(self) -> ReplicaCandidate:
        """Return what a runner reports and a gateway keeps of it."""
        streams = self.engine.streams
        cost = streams.cost
        return ReplicaCandidate(
            key=self.key,
            context_tokens=2**20,
            slots_total=SLOTS,
            slots_free=SLOTS - streams.inside,
            work=streams.inside,
            holdings=holdings_of(streams.held.tell()),
            pace=RunnerPace(
                batch_tokens=512,
                call_s=cost.fixed_s,
                token_s=cost.token_s,
                bytes_per_token=self._bytes_per_token,
                answer_tokens=1.0,
            ),
        )

    async def serve(self, prompt: str, *, answer_tokens: int = 1) -> Served:
        """Return what a request took, to the first of so many tokens."""
        ids, pieces = self.engine.tokens(prompt), self.engine.engine.vocabulary.pieces
        names = SequenceNames([prompt.encode()], salt="", pieces=[pieces[one] for one in ids], inputs=len(ids))
        began_s = time.monotonic()
        stream = self.engine.open(ids, names=names, max_tokens=answer_tokens, ignore_eos=True)
        self.engine.streams.held.note(stream.id, names)
        answer: Answer = await self.engine.read(stream)
        assert answer.end.times is not None
        first_token_s = time.monotonic() - began_s - answer.end.times.generate_ns / NS_PER_S
        return Served(len(ids), answer.cached_tokens, first_token_s)


def waves(trace: list[AgentRequest], most: int) -> Iterator[list[AgentRequest]]:
    """Yield requests of different sessions that are on their way at the same time."""
    wave: list[AgentRequest] = []
    for request in trace:
        if len(wave) == most or any(one.session == request.session for one in wave):
            yield wave
            wave = []
        wave.append(request)
    yield wave


async def measure_routing(setup: Setup) -> list[Verdict]:
    """K7: the avoidable prefill of a trace over four replicas that was avoided."""
    trace = agent_trace(7, bytes_max=setup.tokens * 2)
    async with AsyncExitStack() as stack:
        replicas: dict[str, Replica] = {}
        for number in range(REPLICAS):
            directory = setup.directory / str(number)
            directory.mkdir()
            states = open_node(directory, ram_bytes=GIB // 2, disk_bytes=GIB)
            stack.push_async_callback(states.close)
            options = setup.options(slots=SLOTS)
            engine = await stack.enter_async_context(connected(states, directory, setup.model, **options))
            size = len(trace[0].prompt) / len(engine.tokens(trace[0].prompt))
            replicas[str(number)] = Replica(str(number), engine, bytes_per_token=size)
        tokens = replicas["0"].engine.tokens
        seen: list[list[int]] = []
        avoidable = avoided = total = 0
        for wave in waves(trace, REPLICAS // 2):
            known, served = len(seen), []
            async with asyncio.TaskGroup() as group:
                for request in wave:
                    prefixes = name_prefixes([request.prompt.encode()], salt="")
                    key = choose_replica([one.candidate() for one in replicas.values()], ReplicaNeed(prefixes=prefixes))
                    assert key is not None, "fewer requests than slots"
                    served.append(group.create_task(replicas[key].serve(request.prompt)))
                    await asyncio.sleep(0)  # its slot is counted
            for request, task in zip(wave, served, strict=True):
                ids = tokens(request.prompt)
                common = max((common_prefix_tokens(ids, other) for other in seen[:known]), default=0)
                common = min(common, len(ids) - 1)
                total += len(ids)
                avoidable += common
                avoided += min(common, task.result().cached_tokens)
                seen.append(ids)
    share = avoided / avoidable
    text = (
        f"{share:.4f} of {avoidable} avoidable prompt tokens avoided (bar {K7_BAR}); {len(trace)} requests of "
        f"{total} tokens over {REPLICAS} replicas"
    )
    return [Verdict("K7", text, share >= K7_BAR)]


async def measure_slow_disk(setup: Setup) -> list[Verdict]:
    """K4: p95 of the first token with a throttled disk tier, against no tiers."""
    if not os.access(CGROUPS / "cgroup.procs", os.W_OK):
        return [Verdict("K4", f"not measured: {CGROUPS} cannot be written (root, blkio of cgroup v1)", None)]
    trace = agent_trace(4, bytes_max=setup.tokens * 2)[:60]
    state_bytes = await _state_bytes(setup)
    # In sizes of a state: with more copies in the runner, or without room for one that waits for the disk, the disk
    # gets nothing.
    options = {**setup.options(slots=SLOTS), "copies_bytes_max": state_bytes}
    without, kept = list[float](), list[float]()
    for turn in range(2 * K4_ROUNDS):
        if turn % 4 in (0, 3):  # in turns, forth and back: the speed of a machine drifts
            async with running(setup.model, **options) as engine:
                without += await _first_tokens(engine, trace, None)
            continue
        directory = setup.directory / f"turn-{turn}"
        directory.mkdir()
        states = open_node(directory, ram_bytes=4 * state_bytes, disk_bytes=4 * GIB)
        writing = asyncio.create_task(states.run())
        async with connected(states, directory, setup.model, **options) as engine:
            with throttled_disk(directory):
                kept += await _first_tokens(engine, trace, directory / "states")
        writing.cancel()
        on_disk = next(size.states for size in states.sizes() if size.tier == Tier.DISK)
        await states.close()
    p95_s, bar_s = quantile(kept, 0.95), quantile(without, 0.95)
    text = (
        f"p95 of the first token {p95_s * 1000:.0f} ms with a disk of {DISK_BYTES_PER_S // 10**6} MB/s, "
        f"{bar_s * 1000:.0f} ms without tiers: {p95_s / bar_s:.3f} (bar {K4_BAR}), p50 "
        f"{quantile(kept, 0.5) * 1000:.0f} and {quantile(without, 0.5) * 1000:.0f} ms, {len(kept)} requests each, "
        f"{on_disk} states on disk at the end"
    )
    return [Verdict("K4", text, p95_s / bar_s <= K4_BAR and on_disk > 0)]


async def _first_tokens(engine: Harness, trace: list[AgentRequest], files: Path | None) -> list[float]:
    """Serve a trace, one request after the other; files of states are read from the disk, never from its cache."""
    replica, seconds = Replica("0", engine, bytes_per_token=1.0), []
    for request in trace:
        if files is not None:
            _drop_cached(files)
        seconds.append((await replica.serve(request.prompt, answer_tokens=K4_ANSWER_TOKENS)).first_token_s)
    return seconds


def _drop_cached(directory: Path) -> None:
    """Drop what the kernel has in memory of the files of a directory."""
    for path in directory.iterdir() if directory.exists() else ():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def _state_bytes(setup: Setup) -> int:
    """Return the size of the state of the longest prompt."""
    directory = setup.directory / "size"
    directory.mkdir()
    states = open_node(directory, ram_bytes=4 * GIB, disk_bytes=0)
    async with connected(states, directory, setup.model, **setup.options()) as engine:
        await engine.ask(setup.prompt(1), max_tokens=1, ignore_eos=True)
        await until(lambda: count(states) >= 1, what="the state is saved", deadline_s=600)
        (size,) = [one.bytes for one in states.sizes() if one.tier == "ram"]
    await states.close()
    return size


@contextmanager
def throttled_disk(directory: Path) -> Iterator[None]:
    """Limit what this process reads from the disk of a directory and writes to it, by the kernel."""
    device = directory.stat().st_dev
    disk = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    while (disk / "partition").exists():
        disk = disk.parent
    group = CGROUPS / f"puna-bench-{os.getpid()}"
    group.mkdir()
    try:
        for direction in ("read", "write"):
            limit = f"{(disk / 'dev').read_text().strip()} {DISK_BYTES_PER_S}"
            (group / f"blkio.throttle.{direction}_bps_device").write_text(limit)
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (CGROUPS / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


async def measure_other_node(setup: Setup) -> list[Verdict]:
    """K2: first token on another node that fetches the state, against evaluating it; two hosts with their runners."""
    tiers = {"PUNA_STATES_RAM": "2GiB", "PUNA_STATES_DISK": "0"}
    models = setup.model.parent
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(running_node(setup.directory / "a", models, PUNA_NODE_ID="a", **tiers))
        shared = {"PUNA_DISCOVERY_ADDRESS": a.discovery_address, "PUNA_NODE_ID": "b"}
        b = await stack.enter_async_context(running_node(setup.directory / "b", models, **shared, **tiers))
        b.discovery_address = a.discovery_address
        prompt = setup.prompt(1)
        async with _runner(a, "a", setup) as first:
            await _first_token_s(first, setup.prompt(2, 300))
            cold_s, _ = await _first_token_s(first, prompt)
            await a.inventory(
                lambda seen: any(
                    tier.tier == "ram" and tier.states >= 2
                    for node in seen.nodes
                    if node.id == "a"
                    for tier in node.state_tiers
                )
            )
        async with _runner(b, "b", setup) as second:
            await _first_token_s(second, setup.prompt(2, 300))
            there_s, cached = await _first_token_s(second, prompt, state_node_id="a")
    text = (
        f"first token after {there_s * 1000:.0f} ms, cold {cold_s * 1000:.0f} ms: {there_s / cold_s:.3f} "
        f"(bar {K2_BAR}), {cached} of {len(prompt)} tokens fetched over loopback"
    )
    return [Verdict("K2", text, there_s / cold_s <= K2_BAR)]


@asynccontextmanager
async def _runner(node: Node, node_id: str, setup: Setup) -> AsyncIterator[RunnerClient]:
    options = setup.options()
    layout = cluster_pb2.Layout(
        context_tokens=options["context"],
        slots=options["slots"],
        threads=options["threads"],
        batch_tokens=512,
        flash_attention=cluster_pb2.FLASH_ATTENTION_ON,
    )
    request = await node.start_request(f"{setup.model.stem}:latest", layout=layout)
    record = await node.run(request)
    client = RunnerClient(record.address, runner_peer(node_id, record.placement.placement_id))
    try:
        yield client
    finally:
        await client.close()
        await node.stop(request, drain_ms=1000)


async def _first_token_s(client: RunnerClient, prompt: list[int], **fields: Any) -> tuple[float, int]:
    """Return the seconds to the first token, and the prompt tokens that were not computed."""
    request = runner_pb2.GenerateRequest(max_tokens=1, ignore_eos=True, **fields)
    request.prompt.add().token_ids.ids.extend(prompt)
    began_s, first_s, cached = time.monotonic(), 0.0, 0
    async with closing(client.generate(request)) as events:
        async for event in events:
            if event.WhichOneof("event") == "tokens":
                first_s = time.monotonic() - began_s
            elif event.WhichOneof("event") == "final":
                cached = event.final.cached_tokens
    return first_s, cached
