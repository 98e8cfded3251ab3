"""Leases: devices of this node that the runner of one placement on another node may use."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from common.changes import Changes
from runner.core.devices.holders import HolderProcess
from runner.core.host.leases import Lent, LentAt, Terms
from runner.core.host.promises import MemoryNeed, OutstandingLoad
from runner.core.host.tunnel import Purpose
from runner.host.processes.process import ProcessHandle
from runner.host.processes.stopping import unreaped_text

# The hold, the engine's connections, and those of a moment ago that are still closing.
CONNECTIONS_MAX = 8


class LeaseEnded(OSError):
    """The lease is over; so is the connection."""


class DeviceLease:
    """State shared by its owner (`lending`) and the tunnel's connections, all on one event loop."""

    def __init__(self, placement_id: str, generation: int, terms: Terms, borrower_node_id: str) -> None:
        self.placement_id = placement_id
        self.generation = generation
        self.terms = terms
        self.borrower_node_id = borrower_node_id
        self.changes = Changes()
        self.ready = asyncio.Event()  # the servers listen, or the lease has failed
        self.ended = asyncio.Event()
        self.failure: str = ""
        self.closing = False
        self.servers: tuple[str, ...] = ()  # "host:port" by channel
        self.devices: Mapping[str, LentAt] = {}
        self.process: ProcessHandle | None = None  # that lends what no other server of this node lends
        self.used_bytes: dict[str, int] = {}  # by device, as far as reported
        self.lost_server = ""  # the address of one that has ended under the borrower
        self.held_for: Purpose | None = None
        self.was_served = False  # a runner used it, and has gone
        self._connections: set[asyncio.Task[object]] = set()

    @property
    def in_use(self) -> bool:
        """A runner or a measurement of the borrower holds it."""
        return self.held_for is not None

    def as_lent(self) -> Lent:
        """For decisions."""
        return Lent(generation=self.generation, terms=self.terms, in_use=self.in_use)

    def hold(self, purpose: Purpose) -> str:
        """Take it for one runner or measurement; returns why not, or nothing."""
        if self.in_use:
            return "the lease is in use"
        if self.closing or not self.ready.is_set():
            return "the lease is over" if self.closing else "the lease is not ready"
        self.held_for = purpose
        self.changes.notify()
        return ""

    def release(self) -> None:
        """Mark the lease as released by the borrower."""
        self.was_served = self.was_served or self.held_for is Purpose.SERVE
        self.held_for = None
        self.changes.notify()

    def lose_server(self, address: str) -> None:
        """Note a server of the lease that has ended."""
        self.lost_server = self.lost_server or address
        self.changes.notify()

    def close(self) -> None:
        """Ask the owner to end it."""
        self.closing = True
        self.changes.notify()

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[None]:
        """Register the calling task, which serves a connection; it is cancelled when the lease ends.

        Raises:
            LeaseEnded: the lease is over, or has too many connections.
        """
        task = asyncio.current_task()
        assert task is not None, "called from a coroutine"
        if self.closing or len(self._connections) >= CONNECTIONS_MAX:
            raise LeaseEnded("the lease is over or has too many connections")
        self._connections.add(task)
        try:
            yield
        finally:
            self._connections.discard(task)

    def break_connections(self) -> None:
        """End every connection of the tunnel that belongs to it."""
        assert self.closing, "only at the end"
        for task in self._connections:
            task.cancel()


class Leases(dict[str, DeviceLease]):
    """Current leases by placement id. Changed by their owner (`lending`), read by everything that sums up devices."""

    def promised_bytes(self) -> dict[str, int]:
        """Return the bytes that borrowers hold or will hold, by device id."""
        promised: dict[str, int] = {}
        for lease in self.values():
            for share in lease.terms.shares:
                count = max(share.planned_bytes, lease.used_bytes.get(share.device_id, 0))
                promised[share.device_id] = promised.get(share.device_id, 0) + count
        return promised

    def outstanding(self) -> list[OutstandingLoad]:
        """Return the bytes that borrowers have yet to take."""
        return [
            OutstandingLoad(
                need=MemoryNeed(
                    later_bytes={
                        share.device_id: max(0, share.planned_bytes - lease.used_bytes.get(share.device_id, 0))
                        for share in lease.terms.shares
                    }
                ),
                fraction=0.0,
            )
            for lease in self.values()
        ]

    def device_ids(self) -> list[str]:
        """Return every device that is lent, once for each lease."""
        return [share.device_id for lease in self.values() for share in lease.terms.shares]

    def holders(self) -> list[HolderProcess]:
        """Return the lending processes, with the memory that their borrowers hold."""
        return [
            HolderProcess(
                placement_id=lease.placement_id,
                device_ids=frozenset(share.device_id for share in lease.terms.shares),
                pid=lease.process.pid if lease.process is not None else None,
                held_bytes=dict(lease.used_bytes),
            )
            for lease in self.values()
        ]

    def unreaped(self) -> dict[str, str]:
        """Return why devices whose lending process cannot be ended take no new placement, by device id."""
        return {
            share.device_id: unreaped_text(lease.process.pid)
            for lease in self.values()
            if lease.process is not None and lease.process.unreaped.is_set()
            for share in lease.terms.shares
        }
