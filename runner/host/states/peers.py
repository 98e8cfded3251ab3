"""Saved states of other nodes: brought to this one if that is faster than computing them again.

A runner names a node that may have a state of its prompt; the address comes from discovery, never from a runner. The
node that sends has checked the state (seals in RAM, the MAC of its key on disk), and mutual TLS names it. The node that
receives compares length and digest, and keeps the state as one of its own, under its own key.
"""

import asyncio
import hashlib
import hmac
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from math import inf

from common.clock import Clock
from common.errors import ModelUnavailable, PunaError, QueueFull
from common.telemetry.logs import get_logger
from discovery.client import watch_inventory
from protos import host_pb2
from runner.core.states.catalogue import StateEntry
from runner.core.states.chain import BLOCK_INPUTS
from runner.core.states.gate import RestoreGate, Tier
from runner.core.states.messages import BadMessage
from runner.host import metrics
from runner.host.client import HostClient
from runner.host.states.disk import StateRecord
from runner.host.states.store import NodeStates, common_inputs
from runner.sealed_memory import create_memory_file, seal

log = get_logger()

CHUNK_BYTES = 1024 * 1024
DIGEST_BYTES = 32
FETCHES_MAX = 2  # at a time; their bytes are in no budget until they have arrived
SEEKS_MAX = 64  # that are fetched or wait for their turn: all answers of a replica that ends move together
READS_MAX = 8  # states that other nodes read at a time
INVENTORY_S = 2.0  # for the first inventory
# A fetch is given up after the time that computing would have taken, within these.
FETCH_S_MIN = 0.5
FETCH_S_MAX = 15.0


@dataclass(frozen=True, slots=True)
class Seek:
    """Request of a runner for a state that begins as its prompt does, beyond the inputs that it holds itself."""

    node_id: str
    links: tuple[bytes, ...]
    held_inputs: int
    input_s: float  # to compute an input; 0: not measured


class _NotFaster(Exception):
    """Computing is predicted to be faster."""


class PeerStates:
    """Fetches states from other nodes and sends them those of this one. Owned by the event loop."""

    def __init__(self, states: NodeStates, clock: Clock, *, node_id: str, discovery_addresses: str) -> None:
        self._states = states
        self._clock = clock
        self._node_id = node_id
        self._discovery_addresses = discovery_addresses
        self._hosts = HostClient("node")
        self._addresses: dict[str, str] = {}  # of nodes, until one of them does not have what it is asked for
        self._gates: dict[str, RestoreGate] = {}  # by node
        self._seeks = 0
        self._turns = asyncio.Semaphore(FETCHES_MAX)
        self._fetches = 0
        self._missed_s: dict[str, float] = {}  # when a fetch from a node last failed or was given up
        self._reads = 0

    async def close(self) -> None:
        """Close the connections to other nodes, then the store of this one."""
        await self._hosts.close()
        await self._states.close()

    # -- receive ------------------------------------------------------------------------------------------------------

    async def bring(self, domain: bytes, seek: Seek) -> None:
        """Have the state of another node here if that pays; whatever fails, the prompt is computed.

        Fetches take turns, as the prompts would that are computed instead. After one that failed, those that wait for
        the same node are not begun.
        """
        if self._held(domain, seek) is None:
            return
        asked_s, result = self._clock.now_s(), "busy"
        if self._seeks < SEEKS_MAX:
            self._seeks += 1
            try:
                async with asyncio.timeout(FETCH_S_MAX) as turn, self._turns:
                    turn.reschedule(None)
                    held = self._held(domain, seek)
                    if held is None:
                        return  # an earlier fetch has brought it
                    if self._missed_s.get(seek.node_id, -inf) < asked_s:
                        result = await self._bring_now(domain, seek, held)
                        if result in {"none", "late", "failed"}:  # perhaps it is another node's by now
                            self._addresses.pop(seek.node_id, None)
            except TimeoutError:
                pass
            finally:
                self._seeks -= 1
        metrics.STATES_FETCHED.labels(result=result).inc()
        ms = round((self._clock.now_s() - asked_s) * 1000)
        log.info("states.fetch_ended", node=seek.node_id, result=result, ms=ms)

    def _held(self, domain: bytes, seek: Seek) -> int | None:
        """Return how many inputs are here already; None: there is nothing to bring."""
        held = max(seek.held_inputs, self._states.common_inputs(domain, seek.links))
        lacks = len(seek.links) * BLOCK_INPUTS - held >= BLOCK_INPUTS
        return held if lacks and seek.node_id != self._node_id else None

    async def _bring_now(self, domain: bytes, seek: Seek, held: int) -> str:
        """Fetch a state within the time that computing takes; return what became of it."""
        self._fetches += 1
        began_s = self._clock.now_s()
        try:
            predicted_s = seek.input_s * (len(seek.links) * BLOCK_INPUTS - held)
            async with asyncio.timeout(min(max(predicted_s, FETCH_S_MIN), FETCH_S_MAX)):
                return await self._fetch(domain, seek, held, began_s)
        except _NotFaster:
            return "slower"
        except TimeoutError:
            self._missed_s[seek.node_id] = self._clock.now_s()
            return "late"
        except (PunaError, BadMessage, ValueError, KeyError, TypeError, OSError) as error:
            log.warning("states.not_fetched", node=seek.node_id, text=str(error))
            self._missed_s[seek.node_id] = self._clock.now_s()
            address = self._addresses.get(seek.node_id)
            if address and self._fetches == 1:  # no other fetch uses the channel, which would wait before it reconnects
                await self._hosts.forget(address)
            return "failed"
        finally:
            self._fetches -= 1

    async def _fetch(self, domain: bytes, seek: Seek, held: int, began_s: float) -> str:
        """Read one state from a node into the RAM tier; return what became of it.

        Raises:
            PunaError, OSError, BadMessage: it cannot be had.
            _NotFaster: it is not worth it.
        """
        epoch = self._states.epoch
        address = await self._address(seek.node_id)
        request = host_pb2.ReadStateRequest(domain=domain, links=b"".join(seek.links), inputs_min=held + BLOCK_INPUTS)
        async with aclosing(self._hosts.read_state(address, request, node_id=seek.node_id)) as chunks:
            first = await anext(chunks, None)
            if first is None:
                return "none"
            record = StateRecord.from_json(first.record, tier=Tier.RAM)
            is_wanted = record.domain == domain and common_inputs(record.entry, seek.links) > held
            if not is_wanted or record.entry.size_bytes > self._states.state_bytes_max:
                return "refused"  # a node cannot leave a state of another prompt here
            gate = self._gates.setdefault(seek.node_id, RestoreGate())
            _check_cost(gate, record.entry, seek, held)
            descriptor = create_memory_file()
            try:
                await _receive(chunks, descriptor, record.entry.size_bytes)
                seal(descriptor)
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError):  # it took too long: what has come is its speed
                    received_bytes = os.fstat(descriptor).st_size
                    gate.see(Tier.PEER, size_bytes=received_bytes, seconds=self._clock.now_s() - began_s)
                os.close(descriptor)
                raise
        gate.see(Tier.PEER, size_bytes=record.entry.size_bytes, seconds=self._clock.now_s() - began_s)
        metrics.STATES_FETCHED_BYTES.inc(record.entry.size_bytes)
        log.info("states.fetched", bytes=record.entry.size_bytes, s=round(self._clock.now_s() - began_s, 4))
        return "fetched" if self._states.put_received(record, descriptor, epoch=epoch) else "refused"

    async def _address(self, node_id: str) -> str:
        """Return the address of a host, as discovery knows it.

        Raises:
            ModelUnavailable: there is no such node, or no discovery.
        """
        if node_id not in self._addresses:
            async with (
                asyncio.timeout(INVENTORY_S),
                aclosing(watch_inventory(self._discovery_addresses)) as inventories,
            ):
                inventory = await anext(inventories)
            self._addresses = {node.id: node.address for node in inventory.nodes}
            self._gates = {name: gate for name, gate in self._gates.items() if name in self._addresses}
            self._missed_s = {name: at_s for name, at_s in self._missed_s.items() if name in self._addresses}
        if node_id not in self._addresses:
            raise ModelUnavailable(f"there is no node {node_id!r}")
        return self._addresses[node_id]

    # -- send ---------------------------------------------------------------------------------------------------------

    async def read(
        self, domain: bytes, links: tuple[bytes, ...], inputs_min: int
    ) -> AsyncGenerator[host_pb2.StateChunk, None]:
        """Yield the state of this node with the longest beginning in common; nothing if there is none.

        Raises:
            QueueFull: enough nodes read now.
        """
        if self._reads >= READS_MAX:
            raise QueueFull(f"{READS_MAX} states are being read from this node", retry_after_s=1.0)
        self._reads += 1
        try:
            found = await self._states.longest(domain, links, inputs_min)
            if found is None:
                return
            record, descriptor = found
            try:
                digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
                yield host_pb2.StateChunk(record=record.to_json())
                for place in range(0, record.entry.size_bytes, CHUNK_BYTES):
                    size = min(CHUNK_BYTES, record.entry.size_bytes - place)
                    data = await asyncio.to_thread(os.pread, descriptor, size, place)
                    digest.update(data)
                    yield host_pb2.StateChunk(data=data)
                yield host_pb2.StateChunk(digest=digest.digest())
            finally:
                os.close(descriptor)
            metrics.STATES_SENT.inc()
        finally:
            self._reads -= 1


def _check_cost(gate: RestoreGate, entry: StateEntry, seek: Seek, held: int) -> None:
    """Compare a fetch with computing.

    Raises:
        _NotFaster: computing is predicted to be faster.
    """
    saved_s = (seek.input_s or entry.saved_s / entry.inputs) * (common_inputs(entry, seek.links) - held)
    if saved_s and not gate.restores(Tier.PEER, size_bytes=entry.size_bytes, saved_s=saved_s):
        raise _NotFaster


async def _receive(chunks: AsyncGenerator[host_pb2.StateChunk, None], descriptor: int, size_bytes: int) -> None:
    """Write the bytes of a state.

    Raises:
        BadMessage: they are not what was sent.
    """
    digest, received = hashlib.blake2b(digest_size=DIGEST_BYTES), 0
    async for chunk in chunks:
        if chunk.digest:
            if received != size_bytes or not hmac.compare_digest(chunk.digest, digest.digest()):
                raise BadMessage("the state has changed on its way")
            return
        received += len(chunk.data)
        if received > size_bytes:
            raise BadMessage("the state is longer than announced")
        await asyncio.to_thread(_append, descriptor, digest.update, chunk.data)
    raise BadMessage("the state ended early")


def _append(descriptor: int, update: Callable[[bytes], None], data: bytes) -> None:
    update(data)
    if os.write(descriptor, data) != len(data):
        raise OSError("short write")
