"""A state of another node: sent by one store, taken or refused by the other; nothing stays open of what was refused."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.clock import SystemClock
from common.errors import ModelUnavailable, QueueFull
from protos import host_pb2
from runner.core.states.budget import TierBudget
from runner.host.states.disk import StateRecord
from runner.host.states.peers import FETCHES_MAX, READS_MAX, PeerStates, Seek
from runner.host.states.store import NodeStates
from runner.sealed_memory import create_memory_file, seal
from tests.unit.runner.host.states.test_damaged_states import record

Chunks = list[host_pb2.StateChunk]
FAST = 1.0  # to compute an input: every fetch pays


def store(directory: Path, *, bytes_max: int = 2**20) -> NodeStates:
    directory.mkdir()
    return NodeStates(
        SystemClock(),
        ram=TierBudget(bytes_max=bytes_max, tenant_bytes_max=bytes_max),
        disk_budget=TierBudget(bytes_max=0, tenant_bytes_max=0),
        disk=None,
        orders_path=directory / "forgotten.json",
    )


class Wire:
    """Reads from another store in place of a connection; `change` is what becomes of the chunks on the way."""

    def __init__(self, sender: PeerStates) -> None:
        self.sender = sender
        self.change: Callable[[Chunks], Chunks] = lambda chunks: chunks
        self.flows = asyncio.Event()  # what follows the record waits for it
        self.flows.set()
        self.has_begun = asyncio.Event()
        self.forgotten: list[str] = []

    async def forget(self, address: str) -> None:
        self.forgotten.append(address)

    async def read_state(
        self, address: str, request: host_pb2.ReadStateRequest, *, node_id: str
    ) -> AsyncGenerator[host_pb2.StateChunk, None]:
        assert (address, node_id) == ("there:1", "there")
        links = tuple(request.links[start : start + 16] for start in range(0, len(request.links), 16))
        chunks = [one async for one in self.sender.read(request.domain, links, request.inputs_min)]
        for number, chunk in enumerate(self.change(chunks)):
            if number:
                self.has_begun.set()
                await self.flows.wait()
            yield chunk


class Two:
    """Two stores, and the wire from one to the other."""

    def __init__(self, directory: Path, *, bytes_max: int = 2**20) -> None:
        self.there, self.here = store(directory / "there"), store(directory / "here", bytes_max=bytes_max)
        self.wire = Wire(PeerStates(self.there, SystemClock(), node_id="there", discovery_addresses=""))
        self.peers = PeerStates(self.here, SystemClock(), node_id="here", discovery_addresses="")
        self.peers._hosts = self.wire  # type: ignore[assignment]
        self.know_address()
        self.saved, data = record()
        self.saved = self.keep(self.saved, data)

    def keep(self, saved: StateRecord, data: bytes) -> StateRecord:
        descriptor = create_memory_file()
        os.write(descriptor, data)
        seal(descriptor)
        assert self.there.put(saved, descriptor, epoch=0)
        return saved

    def know_address(self) -> None:
        self.peers._addresses = {"there": "there:1"}

    def seek(self, *, links: tuple[bytes, ...] | None = None, held: int = 0, input_s: float = FAST) -> Seek:
        return Seek("there", self.saved.entry.links if links is None else links, held, input_s)

    @property
    def arrived(self) -> int:
        return self.here.common_inputs(self.saved.domain, self.saved.entry.links)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_state_arrives_whole_and_is_kept_as_one_of_this_node(tmp_path: Path) -> None:
    two = Two(tmp_path)
    await two.peers.bring(two.saved.domain, two.seek())
    found = await two.here.longest(two.saved.domain, two.saved.entry.links, 64)
    assert found is not None
    assert found[0] == two.saved
    assert os.pread(found[1], 2**20, 0) == record()[1]
    os.close(found[1])


DAMAGES: dict[str, Callable[[Chunks], Chunks]] = {
    "a flipped bit": lambda chunks: [
        chunks[0],
        host_pb2.StateChunk(data=bytes([chunks[1].data[0] ^ 1]) + chunks[1].data[1:]),
        *chunks[2:],
    ],
    "cut off": lambda chunks: chunks[:2],
    "longer": lambda chunks: [*chunks[:2], host_pb2.StateChunk(data=b"x"), *chunks[2:]],
    "shorter": lambda chunks: [chunks[0], host_pb2.StateChunk(data=chunks[1].data[:-1]), *chunks[2:]],
    "no record": lambda chunks: chunks[1:],
    "another record": lambda chunks: [host_pb2.StateChunk(record=b'{"key": 1}'), *chunks[1:]],
    "nothing": lambda _: [],
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_state_that_was_damaged_on_its_way_is_not_kept_and_leaves_nothing_open(
    tmp_path: Path, damage: str
) -> None:
    two = Two(tmp_path)
    before = open_files()
    two.wire.change = DAMAGES[damage]
    await two.peers.bring(two.saved.domain, two.seek())
    assert (two.arrived, open_files()) == (0, before)
    assert two.wire.forgotten == ([] if damage == "nothing" else ["there:1"]), "the next fetch connects anew"
    assert two.peers._addresses == {}, "it is asked for again: another node may have this one by now"
    two.wire.change = lambda chunks: chunks
    two.know_address()
    await two.peers.bring(two.saved.domain, two.seek())
    assert two.arrived > 0, "a node that erred once is asked again"


@pytest.mark.parametrize("foreign", [record(domain=b"other")[0], record(salt="b")[0]], ids=["model", "prompt"])
async def test_a_state_of_another_model_or_prompt_is_refused_although_it_was_sent(
    tmp_path: Path, foreign: StateRecord
) -> None:
    two = Two(tmp_path)
    two.wire.change = lambda chunks: [host_pb2.StateChunk(record=foreign.to_json()), *chunks[1:]]
    await two.peers.bring(two.saved.domain, two.seek())
    assert two.here.common_inputs(foreign.domain, foreign.entry.links) == 0


async def test_a_state_larger_than_the_tier_takes_is_not_read(tmp_path: Path) -> None:
    two = Two(tmp_path, bytes_max=1000)
    await two.peers.bring(two.saved.domain, two.seek())
    assert two.arrived == 0


async def test_what_is_computed_faster_is_not_fetched_nor_what_is_here_already(tmp_path: Path) -> None:
    two = Two(tmp_path)
    await two.peers.bring(two.saved.domain, two.seek(input_s=1e-9))
    assert two.arrived == 0
    await two.peers.bring(two.saved.domain, two.seek(held=64 * len(two.saved.entry.links)))
    assert two.arrived == 0


async def test_a_fetch_ends_after_the_time_that_computing_takes_and_the_wire_counts_as_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.host.states.peers.FETCH_S_MIN", 0.005)
    two = Two(tmp_path)
    before = open_files()
    two.wire.flows.clear()
    for _ in range(60):
        two.know_address()
        await two.peers.bring(two.saved.domain, two.seek(input_s=1e-4))
    assert (two.arrived, open_files()) == (0, before)
    two.wire.flows.set()
    two.know_address()
    await two.peers.bring(two.saved.domain, two.seek(input_s=1e-4))
    assert two.arrived == 0, "no longer tried for so little"


async def test_a_state_of_before_an_order_that_only_this_node_has_is_refused(tmp_path: Path) -> None:
    two = Two(tmp_path)
    await two.here.forget(two.saved.salt)
    await two.peers.bring(two.saved.domain, two.seek())
    assert two.arrived == 0


async def test_an_order_during_the_fetch_holds(tmp_path: Path) -> None:
    two = Two(tmp_path)
    two.saved = replace(two.saved, saved_at_s=1e12)  # a clock that is ahead
    two.wire.change = lambda chunks: [host_pb2.StateChunk(record=two.saved.to_json()), *chunks[1:]]
    two.wire.flows.clear()
    bringing = asyncio.create_task(two.peers.bring(two.saved.domain, two.seek()))
    await two.wire.has_begun.wait()
    await two.here.forget(two.saved.salt)
    two.wire.flows.set()
    await bringing
    assert two.arrived == 0


async def test_a_fetch_that_fails_beside_another_leaves_it_its_connection(tmp_path: Path) -> None:
    two = Two(tmp_path)
    two.wire.flows.clear()
    bringing = asyncio.create_task(two.peers.bring(two.saved.domain, two.seek()))
    await two.wire.has_begun.wait()
    two.wire.change = DAMAGES["no record"]
    await two.peers.bring(two.saved.domain, two.seek())
    assert two.wire.forgotten == []
    two.wire.flows.set()
    await bringing
    assert two.arrived > 0


async def test_states_of_all_answers_that_move_at_once_arrive(tmp_path: Path) -> None:
    two = Two(tmp_path)
    kept = [two.keep(*record(salt=f"conversation {number}")) for number in range(8)]
    await asyncio.gather(*(two.peers.bring(one.domain, two.seek(links=one.entry.links)) for one in kept))
    assert all(two.here.common_inputs(one.domain, one.entry.links) == one.entry.inputs // 64 * 64 for one in kept)


async def test_fetches_that_wait_behind_one_that_fails_are_not_begun(tmp_path: Path) -> None:
    two = Two(tmp_path)
    others = [two.keep(*record(salt=f"conversation {number}")) for number in range(4)]
    reads, read = list[bytes](), two.wire.read_state

    def counted(*args: Any, **fields: Any) -> AsyncGenerator[host_pb2.StateChunk, None]:
        reads.append(b"")
        return read(*args, **fields)

    two.wire.read_state = counted  # type: ignore[method-assign]
    two.wire.change = DAMAGES["cut off"]
    await asyncio.gather(*(two.peers.bring(one.domain, two.seek(links=one.entry.links)) for one in others))
    assert len(reads) == FETCHES_MAX
    two.wire.change = lambda chunks: chunks
    two.know_address()
    await two.peers.bring(two.saved.domain, two.seek())
    assert two.arrived > 0, "a later one is"


async def test_more_seeks_than_the_bound_are_not_kept_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.host.states.peers.SEEKS_MAX", 1)
    two = Two(tmp_path)
    other = two.keep(*record(salt="other"))
    two.wire.flows.clear()
    bringing = asyncio.create_task(two.peers.bring(two.saved.domain, two.seek()))
    await two.wire.has_begun.wait()
    await two.peers.bring(other.domain, two.seek(links=other.entry.links))
    assert two.here.common_inputs(other.domain, other.entry.links) == 0
    two.wire.flows.set()
    await bringing
    assert two.arrived > 0


async def test_an_unknown_node_is_not_asked(tmp_path: Path) -> None:
    two = Two(tmp_path)
    two.peers._discovery_addresses = "127.0.0.1:1"
    with pytest.raises((ModelUnavailable, TimeoutError)):
        await two.peers._address("nowhere")


async def test_only_so_many_states_are_read_at_a_time(tmp_path: Path) -> None:
    two = Two(tmp_path)
    reads = [two.wire.sender.read(two.saved.domain, two.saved.entry.links, 64) for _ in range(READS_MAX)]
    for one in reads:
        await anext(one)
    with pytest.raises(QueueFull):
        await anext(two.wire.sender.read(two.saved.domain, two.saved.entry.links, 64))
    for one in reads:
        await one.aclose()
    assert await anext(two.wire.sender.read(two.saved.domain, two.saved.entry.links, 64))
