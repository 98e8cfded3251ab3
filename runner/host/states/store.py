"""Saved states of the node: the RAM tier, the disk tier behind it, and what becomes of each state.

Owned by the event loop. Files are read and written in threads, one write at a time.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Protocol

from common.clock import Clock
from common.telemetry.logs import get_logger
from common.telemetry.metrics import Sample
from protos import cluster_pb2
from runner.core.states.budget import TierBudget
from runner.core.states.catalogue import StateEntry
from runner.core.states.chain import BLOCK_INPUTS
from runner.core.states.forgotten import ForgetOrders
from runner.core.states.gate import Tier
from runner.host import metrics
from runner.host.home import write_durably
from runner.host.states.disk import BadStateFile, DiskTier, StateRecord, state_id
from runner.priorities import give_way
from runner.sealed_memory import is_sealed

log = get_logger()

# A state that stays as it is for so long is written: a conversation that goes on replaces it before.
SETTLED_S = 30.0
LOOK_S = 5.0
DISK_RETRY_S = 60.0  # after an error of the disk
CLOSING_S = 20.0  # for writing what is in RAM only, when the host ends
_READY_SHARE = 0.25  # of the RAM tier: free, or taken by states that are on disk too and can go at once
_RECENT_S = 600.0
_ASSUMED_S = 0.001  # to compute an input, where that was not measured


class Watcher(Protocol):
    """A runner that hears what is saved of its domain."""

    domain: bytes

    def entered(self, entry: StateEntry) -> None:
        """Note a state that is there now, or in another tier."""

    def gone(self, key: str) -> None:
        """Note that a state is gone."""

    def forget(self, salt: str, epoch: int) -> None:
        """Drop what the runner itself holds of a tenant."""


@dataclass(slots=True, kw_only=True)
class _Kept:
    """A state in one tier or in both."""

    record: StateRecord
    descriptor: int | None  # None: on disk only
    entered_at_s: float
    written: bool = False
    unwritable: bool = False  # too large for the disk tier, or it had to go there

    @property
    def is_to_write(self) -> bool:
        """Return True if it is in RAM only, and the disk tier can take it."""
        return self.descriptor is not None and not self.written and not self.unwritable


class NodeStates:
    """See the module."""

    def __init__(
        self, clock: Clock, *, ram: TierBudget, disk_budget: TierBudget, disk: DiskTier | None, orders_path: Path
    ) -> None:
        """`disk` None: nothing outlives the host. Orders to forget are kept in `orders_path`.

        Raises:
            OSError, ValueError, KeyError, TypeError: the orders cannot be read; what is forgotten could come back.
        """
        self._clock = clock
        self._ram = ram
        self._disk = disk
        self._disk_budget = disk_budget
        self._orders_path = orders_path
        self._forgotten = _read_orders(orders_path)
        self._kept: dict[str, _Kept] = {}
        self._watchers: set[Watcher] = set()
        self._writing = asyncio.Lock()  # one file at a time: the disk is for models, too
        self._being_written: _Kept | None = None  # which may leave RAM
        # Of files whose runners compute meanwhile: a digest and a copy of all that is written.
        self._writer: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "states-writer", give_way)
        self._disk_off_until_s = 0.0
        self._entered = asyncio.Event()  # of a state, into RAM

    # -- what runners and others ask ----------------------------------------------------------------------------------

    @property
    def state_bytes_max(self) -> int:
        """The largest state that is taken; 0: none is."""
        return self._ram.tenant_bytes_max

    @property
    def epoch(self) -> int:
        """Number of the newest order to forget."""
        return self._forgotten.epoch

    @property
    def unused_ram_bytes(self) -> int:
        """Return what of the RAM tier is promised to states and not yet used."""
        return max(0, self._ram.bytes_max - self._ram.bytes_used)

    def sizes(self) -> list[cluster_pb2.StateTier]:
        """List what is used of both tiers."""
        return [
            cluster_pb2.StateTier(tier=tier, bytes=budget.bytes_used, max_bytes=budget.bytes_max, states=len(budget))
            for tier, budget in ((Tier.RAM, self._ram), (Tier.DISK, self._disk_budget))
        ]

    def samples(self) -> Iterable[Sample]:
        """Yield the gauges of both tiers."""
        for size in self.sizes():
            yield Sample(metrics.STATE_BYTES, size.bytes, (size.tier,))
            yield Sample(metrics.STATE_BYTES_MAX, size.max_bytes, (size.tier,))
            yield Sample(metrics.STATES, size.states, (size.tier,))

    def watch(self, watcher: Watcher) -> list[StateEntry]:
        """Let a runner hear of changes; return what there is of its domain."""
        self._watchers.add(watcher)
        return [_shown(kept) for kept in self._of(watcher.domain)]

    def unwatch(self, watcher: Watcher) -> None:
        """Let a runner hear nothing more."""
        self._watchers.discard(watcher)

    def put(self, record: StateRecord, descriptor: int, *, epoch: int, replaces: str = "") -> bool:
        """Take a state; the descriptor is this store's from here on. False: it is refused."""
        reason = self._reason_against(record, descriptor, epoch)
        known = self._kept.get(record.id)
        if reason or (known is not None and known.descriptor is not None):
            os.close(descriptor)
            if reason:
                metrics.STATES_REFUSED.labels(reason=reason).inc()
            return not reason  # an equal state is there already
        if replaces:
            self._drop(state_id(record.domain, replaces))
        kept = known or _Kept(record=record, descriptor=None, entered_at_s=0.0)
        self._kept[record.id] = kept
        self._enter_ram(kept, descriptor)
        metrics.STATES_SAVED.inc()
        return True

    def put_received(self, record: StateRecord, descriptor: int, *, epoch: int) -> bool:
        """Take a state from another node; the descriptor is this store's from here on.

        `epoch` is of when the state was asked for. Refused is also what was saved there before an order that only this
        node has.
        """
        if self._forgotten.covers(record.salt, record.saved_at_s):
            os.close(descriptor)
            metrics.STATES_REFUSED.labels(reason="forgotten").inc()
            return False
        return self.put(record, descriptor, epoch=epoch)

    def _enter_ram(self, kept: _Kept, descriptor: int) -> None:
        """Keep a state in RAM; it fits, by `_reason_against`."""
        dropped = _add(self._ram, kept.record)
        assert dropped is not None, "its size was checked"
        kept.descriptor, kept.entered_at_s = descriptor, self._clock.now_s()
        self._tell(kept)
        for name in dropped:
            self._leave_ram(name)
        self._entered.set()

    async def get(self, domain: bytes, key: str) -> int | None:
        """Return the descriptor of a state for the caller to close; None: it is gone or damaged."""
        wanted = self._kept.get(state_id(domain, key))
        if wanted is None:
            metrics.STATES_REFUSED.labels(reason="gone").inc()
            return None
        tier = Tier.DISK if wanted.descriptor is None else Tier.RAM
        descriptor = await self._opened(wanted)
        if descriptor is not None:
            metrics.STATES_RESTORED.labels(tier=tier).inc()
        return descriptor

    async def longest(self, domain: bytes, links: Sequence[bytes], inputs_min: int) -> tuple[StateRecord, int] | None:
        """Return the state with the longest beginning in common, and its descriptor for the caller to close."""
        wanted = max(self._of(domain), key=lambda kept: _rank(kept.record.entry, links), default=None)
        if wanted is None or common_inputs(wanted.record.entry, links) < inputs_min:
            return None
        descriptor = await self._opened(wanted)
        return None if descriptor is None else (wanted.record, descriptor)

    def common_inputs(self, domain: bytes, links: Sequence[bytes]) -> int:
        """Return the most inputs of a prompt that a state of this node has."""
        return max((common_inputs(kept.record.entry, links) for kept in self._of(domain)), default=0)

    def _of(self, domain: bytes) -> Iterator[_Kept]:
        return (kept for kept in self._kept.values() if kept.record.domain == domain)

    async def _opened(self, wanted: _Kept) -> int | None:
        """Return the descriptor of a state, for the caller to close; None: it is gone or damaged."""
        descriptor = await self._bring_back(wanted) if wanted.descriptor is None else os.dup(wanted.descriptor)
        if descriptor is not None:
            self._ram.use(wanted.record.id)
            self._disk_budget.use(wanted.record.id)
        return descriptor

    async def forget(self, salt: str) -> tuple[int, int]:
        """Drop every state of a tenant; return how many there were, and their bytes.

        What a runner copied before it obeyed is refused when it arrives, and so are files put back from a copy.

        Raises:
            OSError: the order could not be noted, and nothing was dropped.
        """
        epoch = self._forgotten.add(salt, self._clock.wall_unix_s())
        await asyncio.to_thread(write_durably, self._orders_path, json.dumps(self._forgotten.to_json()).encode())
        for watcher in list(self._watchers):
            watcher.forget(salt, epoch)
        async with self._writing:  # a write that was going on is over
            ids = [name for name, kept in self._kept.items() if kept.record.salt == salt]
            size = sum(self._kept[name].record.entry.size_bytes for name in ids)
            for name in ids:
                self._drop(name)
                if self._disk is not None:
                    await asyncio.to_thread(self._disk.remove, name)
        log.info("states.forgotten", states=len(ids), bytes=size)
        return len(ids), size

    def recent_orders(self) -> dict[str, int]:
        """Return orders that a runner may have missed while no host was connected, by tenant."""
        return self._forgotten.since(self._clock.wall_unix_s() - _RECENT_S)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Find what an earlier host left on disk."""
        if self._disk is None:
            return
        try:
            records = await asyncio.to_thread(lambda disk: list(disk.read_records()), self._disk)
        except OSError as error:
            self._turn_disk_off(error)
            return
        now_s = self._clock.now_s()
        for record in records:
            if self._forgotten.covers(record.salt, record.saved_at_s):
                metrics.STATES_REFUSED.labels(reason="forgotten").inc()
                await asyncio.to_thread(self._disk.remove, record.id)
                continue
            self._kept[record.id] = _Kept(record=record, descriptor=None, written=True, entered_at_s=now_s)
            gone = _add(self._disk_budget, record)
            for name in [record.id] if gone is None else gone:
                await self._leave_disk(name)
        log.info("states.found", states=len(self._kept), bytes=self._disk_budget.bytes_used)

    async def run(self) -> None:
        """Write states that have settled, and those that go next where RAM gets full; for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._entered.wait()
            self._entered.clear()
            while (name := self._next_to_write()) is not None:
                await self._write(name)

    def _next_to_write(self) -> str | None:
        if not self._takes_files:
            return None
        every = self._ram.next_out(self._ram.bytes_max)
        settled = (name for name in every if self._clock.now_s() - self._kept[name].entered_at_s >= SETTLED_S)
        next_out = self._ram.next_out(int(self._ram.bytes_max * _READY_SHARE))
        return next((name for name in chain(next_out, settled) if self._kept[name].is_to_write), None)

    async def close(self) -> None:
        """Write what is in RAM only, as long as there is time, then let go of everything."""
        if self._writer is not None:
            self._writer.shutdown(wait=False)
            self._writer = None  # the rest is urgent
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_S):
                for name in list(self._kept):
                    await self._write(name)
        for kept in self._kept.values():
            if kept.descriptor is not None:
                os.close(kept.descriptor)
        self._kept.clear()

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _reason_against(self, record: StateRecord, descriptor: int, epoch: int) -> str:
        if not is_sealed(descriptor) or os.fstat(descriptor).st_size != record.entry.size_bytes:
            return "not_sealed"
        if self._forgotten.is_newer(record.salt, epoch):
            return "forgotten"
        return "too_large" if record.entry.size_bytes > self.state_bytes_max else ""

    async def _bring_back(self, wanted: _Kept) -> int | None:
        """Read a state from disk, into the RAM tier too unless it takes the place of one that is not on disk yet."""
        assert self._disk is not None, "it is on disk"
        record = wanted.record
        if not wanted.written:
            async with self._writing:
                pass  # it was being written
        try:
            descriptor = await asyncio.to_thread(self._disk.read, record.id)
        except (OSError, BadStateFile) as error:
            log.warning("states.file_refused", id=record.id, text=str(error))
            metrics.STATES_REFUSED.labels(reason="damaged" if isinstance(error, BadStateFile) else "unreadable").inc()
            self._drop(record.id)
            return None
        if self._kept.get(record.id) is not wanted:  # forgotten meanwhile
            os.close(descriptor)
            return None
        size = record.entry.size_bytes
        displaced = (name for name in self._ram.next_out(size) if self._kept[name].is_to_write)
        if wanted.descriptor is None and size <= self.state_bytes_max and not any(displaced):
            self._enter_ram(wanted, os.dup(descriptor))
        return descriptor

    def _leave_ram(self, name: str) -> None:
        """Give back the RAM of a state that has no place in it any more."""
        kept = self._kept[name]
        assert kept.descriptor is not None, "it was in RAM"
        if not kept.written and kept is not self._being_written:
            self._drop(name)
            return
        os.close(kept.descriptor)
        kept.descriptor = None
        self._tell(kept)

    @property
    def _takes_files(self) -> bool:
        return self._disk is not None and self._clock.now_s() >= self._disk_off_until_s

    async def _write(self, name: str) -> None:
        """Write a state to disk unless it is there or too large."""
        async with self._writing:
            kept = self._kept.get(name)
            if kept is None or kept.descriptor is None or not kept.is_to_write or not self._takes_files:
                return
            assert self._disk is not None, "it takes files"
            gone = _add(self._disk_budget, kept.record)
            if gone is None:
                kept.unwritable = True
                return
            descriptor, self._being_written = os.dup(kept.descriptor), kept
            try:
                for other in gone:
                    await self._leave_disk(other)
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._writer, self._disk.write, kept.record, descriptor)
                kept.written = True
            except OSError as error:
                self._disk_budget.remove(name)
                self._turn_disk_off(error)
                if name not in self._ram:
                    self._drop(name)
            finally:
                self._being_written = None
                os.close(descriptor)
            if self._kept.get(name) is not kept:  # it went meanwhile
                await asyncio.to_thread(self._disk.remove, name)

    async def _leave_disk(self, name: str) -> None:
        kept = self._kept.get(name)
        if kept is not None:
            kept.written, kept.unwritable = False, True
            if kept.descriptor is None:
                self._drop(name)
        if self._disk is not None:
            await asyncio.to_thread(self._disk.remove, name)

    def _turn_disk_off(self, error: OSError) -> None:
        if self._clock.now_s() >= self._disk_off_until_s:
            log.warning("states.disk_off", text=str(error), retry_s=DISK_RETRY_S)
        metrics.STATES_REFUSED.labels(reason="disk").inc()
        self._disk_off_until_s = self._clock.now_s() + DISK_RETRY_S

    def _drop(self, name: str) -> None:
        """Let go of a state; its file is removed by a thread."""
        kept = self._kept.pop(name, None)
        if kept is None:
            return
        if kept.descriptor is not None:
            os.close(kept.descriptor)
        self._ram.remove(name)
        self._disk_budget.remove(name)
        if kept.written and self._disk is not None:
            asyncio.get_running_loop().run_in_executor(None, self._disk.remove, name)
        for watcher in self._watchers:
            if watcher.domain == kept.record.domain:
                watcher.gone(kept.record.entry.key)

    def _tell(self, kept: _Kept) -> None:
        for watcher in self._watchers:
            if watcher.domain == kept.record.domain:
                watcher.entered(_shown(kept))


def common_inputs(entry: StateEntry, links: Sequence[bytes]) -> int:
    """Return the inputs that a state has in common with a prompt, in whole blocks."""
    places = range(min(len(entry.links), len(links)), 0, -1)
    return next((place for place in places if entry.links[place - 1] == links[place - 1]), 0) * BLOCK_INPUTS


def _rank(entry: StateEntry, links: Sequence[bytes]) -> tuple[int, int]:
    """Rank the state with more in common higher, the smallest of several."""
    return common_inputs(entry, links), -entry.size_bytes


def _add(budget: TierBudget, record: StateRecord) -> list[str] | None:
    entry = record.entry
    worth_s = entry.saved_s or entry.inputs * _ASSUMED_S
    return budget.add(record.id, tenant=record.salt, size_bytes=entry.size_bytes, saved_s=worth_s)


def _read_orders(path: Path) -> ForgetOrders:
    return ForgetOrders.from_json(json.loads(path.read_bytes())) if path.exists() else ForgetOrders()


def _shown(kept: _Kept) -> StateEntry:
    return replace(kept.record.entry, tier=Tier.DISK if kept.descriptor is None else Tier.RAM)
