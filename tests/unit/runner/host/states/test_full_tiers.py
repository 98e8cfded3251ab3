"""Tiers that are full: what leaves RAM is on disk by then, and nothing is written without end."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from runner.core.states.budget import TierBudget
from runner.host.states.disk import DiskTier, StateRecord
from runner.host.states.store import SETTLED_S, NodeStates
from runner.sealed_memory import create_memory_file, seal
from tests.set_clock import SetClock
from tests.unit.runner.host.states.test_damaged_states import record
from tests.waiting import until


class NotedDisk(DiskTier):
    """A disk tier that notes what is written."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "states", directory / "states.key")
        self.writes: list[str] = []
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def write(self, saved: StateRecord, descriptor: int) -> None:
        self.begun.set()
        assert self.goes_on.wait(30)
        super().write(saved, descriptor)
        self.writes.append(saved.id)


SIZE = record()[0].entry.size_bytes


def states_of(number: int) -> list[tuple[StateRecord, bytes]]:
    """Different states of about the same size."""
    return [record(inputs=[*range(300 + seed, 460 + seed)]) for seed in range(number)]


@asynccontextmanager
async def running_store(
    directory: Path, clock: SetClock, *, ram_states: float, disk_states: float
) -> AsyncIterator[tuple[NodeStates, NotedDisk]]:
    ram, disk_bytes = int(ram_states * SIZE), int(disk_states * SIZE)
    disk = NotedDisk(directory)
    store = NodeStates(
        clock,
        ram=TierBudget(bytes_max=ram, tenant_bytes_max=ram),
        disk_budget=TierBudget(bytes_max=disk_bytes, tenant_bytes_max=disk_bytes),
        disk=disk,
        orders_path=directory / "forgotten.json",
    )
    life = asyncio.create_task(store.run())
    try:
        yield store, disk
    finally:
        life.cancel()
        with suppress(asyncio.CancelledError):
            await life
        await store.close()


def put(store: NodeStates, saved: StateRecord, data: bytes) -> None:
    descriptor = create_memory_file()
    os.write(descriptor, data)
    seal(descriptor)
    assert store.put(saved, descriptor, epoch=0)


async def test_states_of_half_the_tier_are_on_disk_before_they_leave_it(tmp_path: Path) -> None:
    async with running_store(tmp_path, SetClock(), ram_states=2.5, disk_states=20) as (store, disk):
        for number, (saved, data) in enumerate(states_of(8)):
            put(store, saved, data)
            # One of the two in RAM can go at once: what is behind the first one is written while it comes.
            await until(lambda number=number: len(disk.writes) >= number, what="it can go")  # type: ignore[misc]
            ram = store.sizes()[0]
            assert ram.bytes <= ram.max_bytes
        for saved, data in states_of(8):
            descriptor = await store.get(saved.domain, saved.entry.key)
            assert descriptor is not None
            assert os.pread(descriptor, 2 * SIZE, 0) == data
            os.close(descriptor)
        assert len(disk.writes) == len(set(disk.writes))


async def test_a_disk_smaller_than_ram_gets_each_state_once(tmp_path: Path) -> None:
    clock = SetClock()
    async with running_store(tmp_path, clock, ram_states=8.5, disk_states=2.5) as (store, disk):
        for saved, data in states_of(4):
            put(store, saved, data)
        clock.moved_s = SETTLED_S
        put(store, *states_of(5)[-1])  # which has the store look
        await until(lambda: len(disk.writes) >= 4, what="the settled ones are written")
        clock.moved_s = 2 * SETTLED_S
        put(store, *states_of(6)[-1])
        await until(lambda: len(disk.writes) >= 5, what="and the next one")
        await asyncio.gather(*(store.get(saved.domain, saved.entry.key) for saved, _ in states_of(6)))
        assert len(disk.writes) == len(set(disk.writes)) == 5
        assert store.sizes()[1].states == 2


async def test_a_state_that_leaves_ram_while_it_is_written_is_read_behind_that(tmp_path: Path) -> None:
    async with running_store(tmp_path, SetClock(), ram_states=1.5, disk_states=20) as (store, disk):
        disk.goes_on.clear()
        (first, data), second = states_of(2)
        put(store, first, data)
        assert await asyncio.to_thread(disk.begun.wait, 30)
        put(store, *second)
        assert store.sizes()[0].states == 1
        reading = asyncio.create_task(store.get(first.domain, first.entry.key))
        await asyncio.sleep(0)
        disk.goes_on.set()
        descriptor = await reading
        assert descriptor is not None
        assert os.pread(descriptor, 2 * SIZE, 0) == data
        os.close(descriptor)
