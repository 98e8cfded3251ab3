"""Connection of the host to one runner about saved states. The runner listens, because it is confined.

The runner is not trusted: it reads hostile files. So the host names the domain of what it sends, takes sealed memory
only, and bounds every message; a runner that breaks the rules is disconnected, and serves on without saved states.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import socket
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any

from common.clock import Clock
from common.telemetry.logs import get_logger
from protos import cluster_pb2
from runner.core.states import messages
from runner.core.states.catalogue import StateEntry
from runner.core.states.gate import Tier
from runner.host import metrics
from runner.host.states.disk import StateRecord
from runner.host.states.peers import PeerStates, Seek
from runner.host.states.store import NodeStates

log = get_logger()

RETRY_S = 0.2
_UNSENT_MAX = 4096  # messages; a runner that reads none is cut off
_GETS_MAX = 64  # states that one runner waits for
NODE_ID_LENGTH_MAX = 256


def domain_of(record: cluster_pb2.RunnerRecord) -> bytes:
    """Return the name of everything that the host knows to decide whose states fit: the files of the model."""
    layout = record.layout
    adapters = [[adapter.digest, adapter.scale] for adapter in layout.adapters]
    text = json.dumps([record.model_digest, layout.projector_digest, adapters])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


class StateConnection:
    """Serves one runner until it is gone."""

    def __init__(self, states: NodeStates, peers: PeerStates, clock: Clock, *, path: str, domain: bytes) -> None:
        self.domain = domain
        self._states = states
        self._peers = peers
        self._clock = clock
        self._path = path
        self._socket: socket.socket | None = None
        self._unsent: deque[tuple[bytes, int | None]] = deque()
        self._gets: set[asyncio.Task[None]] = set()

    async def run(self, gone: asyncio.Event) -> None:
        """Connect, again if it is lost, until the runner is gone and all that it sent was taken."""
        while self._states.state_bytes_max:
            ending = gone.is_set()
            try:
                await self._serve()
            except OSError:
                pass
            except messages.BadMessage as error:
                metrics.STATES_REFUSED.labels(reason="malformed").inc()
                log.warning("states.runner_cut_off", socket=self._path, text=str(error))
                await gone.wait()
                return
            if ending:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await gone.wait()

    # -- what the store says ------------------------------------------------------------------------------------------

    def entered(self, entry: StateEntry) -> None:
        """Tell the runner of a state."""
        self._send(messages.encode("have", entries=[{**messages.entry_fields(entry), "tier": entry.tier}]))

    def gone(self, key: str) -> None:
        """Tell the runner that a state is gone."""
        self._send(messages.encode("gone", keys=[key]))

    def forget(self, salt: str, epoch: int) -> None:
        """Let the runner drop what it holds of a tenant."""
        self._send(messages.encode("forget", salt=salt, epoch=epoch))

    # -- connection ---------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Serve one connection to its end.

        Raises:
            OSError: there is none.
            BadMessage: the runner breaks the rules.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.setblocking(False)
            connection.connect(self._path)
            self._socket = connection
            self._greet()
            while await self._receive(connection):
                pass
        finally:
            self._states.unwatch(self)
            self._socket = None
            asyncio.get_running_loop().remove_writer(connection.fileno())
            connection.close()
            for _, descriptor in self._unsent:
                if descriptor is not None:
                    os.close(descriptor)
            self._unsent.clear()
            for task in self._gets:
                task.cancel()

    def _greet(self) -> None:
        """Tell the runner what there is, then that it may begin."""
        entries = self._states.watch(self)
        shown = [{**messages.entry_fields(entry), "tier": entry.tier} for entry in entries]
        for part in messages.batches(shown):
            self._send(messages.encode("have", entries=part))
        for salt, epoch in self._states.recent_orders().items():
            self.forget(salt, epoch)
        self._send(messages.encode("hello", bytes_max=self._states.state_bytes_max, epoch=self._states.epoch))

    async def _receive(self, connection: socket.socket) -> bool:
        """Take one message; False at the end."""
        await _readable(connection)
        data, descriptors, flags, _ = socket.recv_fds(
            connection, messages.MESSAGE_BYTES_MAX, 1, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        )
        try:
            if not data:
                return False
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise messages.BadMessage("too long")
            self._take(messages.decode(data), descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _take(self, message: Mapping[str, Any], descriptors: list[int]) -> None:
        match message["op"]:
            case "put" if descriptors:
                record = StateRecord(
                    entry=messages.read_entry(message, tier=Tier.RAM),
                    domain=self.domain,
                    salt=messages.read_salt(message),
                    saved_at_s=self._clock.wall_unix_s(),
                )
                replaces = messages.read_key(message, "replaces") if message.get("replaces") else ""
                epoch = messages.natural(message, "epoch")
                self._states.put(record, descriptors.pop(), epoch=epoch, replaces=replaces)
                self._send(messages.encode("taken", key=record.entry.key))
            case "get" if len(self._gets) < _GETS_MAX:
                self._begin(self._answer(messages.natural(message, "id"), messages.read_key(message, "key")))
            case "seek" if len(self._gets) < _GETS_MAX:
                self._begin(self._bring(messages.natural(message, "id"), _read_seek(message)))
            case operation:
                raise messages.BadMessage(f"operation {operation[:20]!r}")

    def _begin(self, answer: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(answer)
        self._gets.add(task)
        task.add_done_callback(self._gets.discard)

    async def _bring(self, number: int, seek: Seek) -> None:
        """Have a state of another node here; the runner hears of it before the answer."""
        await self._peers.bring(self.domain, seek)
        self._send(messages.encode("sought", id=number))

    async def _answer(self, number: int, key: str) -> None:
        descriptor = await self._states.get(self.domain, key)
        self._send(messages.encode("state", id=number), descriptor)

    def _send(self, message: bytes, descriptor: int | None = None) -> None:
        """Send a message now or as soon as the runner reads; the descriptor is closed then."""
        if self._socket is None or len(self._unsent) >= _UNSENT_MAX:
            if descriptor is not None:
                os.close(descriptor)
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)  # it is connected anew, with everything that there is
            return
        self._unsent.append((message, descriptor))
        if len(self._unsent) == 1:
            self._send_waiting()

    def _send_waiting(self) -> None:
        connection = self._socket
        assert connection is not None, "what waits goes with its connection"
        loop = asyncio.get_running_loop()
        while self._unsent:
            message, descriptor = self._unsent[0]
            flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            try:
                socket.send_fds(connection, [message], [] if descriptor is None else [descriptor], flags)
            except BlockingIOError:
                loop.add_writer(connection.fileno(), self._send_waiting)
                return
            except OSError:
                break  # the reading side notices
            self._unsent.popleft()
            if descriptor is not None:
                os.close(descriptor)
        loop.remove_writer(connection.fileno())


def _read_seek(message: Mapping[str, Any]) -> Seek:
    """Read what a runner seeks.

    Raises:
        BadMessage: a field is missing or out of its range.
    """
    node_id = message.get("node")
    if not isinstance(node_id, str) or len(node_id) > NODE_ID_LENGTH_MAX:
        raise messages.BadMessage("node")
    return Seek(
        node_id=node_id,
        links=messages.read_links(message.get("links")),
        held_inputs=messages.natural(message, "inputs"),
        input_s=messages.read_seconds(message, "input_s"),
    )


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def note() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection.fileno(), note)
    try:
        await ready
    finally:
        loop.remove_reader(connection.fileno())
