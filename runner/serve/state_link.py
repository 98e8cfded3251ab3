"""Saved states of this runner: a listening socket, to which the host connects, and the engine's store behind it.

The runner is confined and connects to nothing, so the host connects, also a new one after a restart. Three threads: one
receives, one prepares memory and sends states, and one joins slices. The last has a low priority, because steps are
computed meanwhile. The engine's thread never waits for any.
"""

import os
import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from common.telemetry.logs import get_logger
from common.trust.sockets import private_umask
from runner import metrics
from runner.core.states import messages
from runner.core.states.blob import DamagedState, StateIndex, read_index, trailer
from runner.core.states.catalogue import Catalogue, StateEntry
from runner.core.states.gate import RestoreGate, Tier
from runner.engine.contract.states import NewState, SavedState, StateBuffer, StateOffer
from runner.priorities import give_way
from runner.serve.held_prefixes import RestorableState
from runner.serve.state_memory import MemoryFile, map_sealed

log = get_logger()

FETCH_DEADLINE_S = 20.0  # of a state on a slow disk; then the prompt is computed
_LOOK_S = 0.5
_CLOSE_S = 3.0
_CREDENTIALS = struct.Struct("3i")

Forget = Callable[[str, Callable[[], None]], None]
OnEngine = Callable[[Callable[[], None]], None]


class _Fetch(NamedTuple):
    """A state that the host was asked for."""

    offer: StateOffer
    done: Callable[[SavedState | None], None]
    deadline_s: float


class _Seek(NamedTuple):
    """A state of another node that the host was asked to bring."""

    done: Callable[[], None]
    deadline_s: float


_Work = queue.SimpleQueue[Callable[[], None] | None]


def _work_all(work: _Work) -> None:
    while (one := work.get()) is not None:
        one()


def _work_slowly(work: _Work) -> None:
    give_way()
    _work_all(work)


class StateLink:
    """See `runner.engine.contract.states.StateStore`."""

    def __init__(self, path: str, forget: Forget, on_engine: OnEngine) -> None:
        """Listen on a Unix socket.

        `forget` lets the engine drop what it holds of a salt; `on_engine` calls something on its thread.
        """
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with private_umask():
            self._listener.bind(path)
        self._listener.listen(1)
        self._forget = forget
        self._on_engine = on_engine
        self.gate = RestoreGate()
        # Called when other states are saved than before, on a thread of this object.
        self.on_change: Callable[[], object] = lambda: None
        self._hosts = 0
        self._host: socket.socket | None = None
        self._bytes_max = 0
        self._catalogue = Catalogue()
        self._fetches: dict[int, _Fetch] = {}
        self._seeks: dict[int, _Seek] = {}
        self._unconfirmed: set[str] = set()  # keys of states that were sent, and that the host has not taken or refused
        self._confirmed = threading.Condition()
        self._next_id = 0
        self.epoch = 0  # of the newest order to forget that the engine has obeyed
        self._work, self._slow_work = _Work(), _Work()
        self._closing = threading.Event()
        self._receiver = threading.Thread(target=self._receive_all, name="states", daemon=True)
        self._workers = [
            threading.Thread(target=_work_all, args=(self._work,), name="states-copy", daemon=True),
            threading.Thread(target=_work_slowly, args=(self._slow_work,), name="states-join", daemon=True),
        ]

    def start(self) -> None:
        """Begin to accept the host."""
        for thread in (self._receiver, *self._workers):
            thread.start()

    def close(self) -> None:
        """Send what is to be sent, then end; nothing if it was never started."""
        if self._receiver.ident is None:
            self._listener.close()
            return
        for work, worker in zip((self._work, self._slow_work), self._workers, strict=True):
            work.put(None)
            worker.join(_CLOSE_S)
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the receiver
        self._receiver.join(_CLOSE_S)

    # -- of the engine's thread ---------------------------------------------------------------------------------------

    @property
    def bytes_max(self) -> int:
        """The largest state that the host takes; 0 while none is connected."""
        return self._bytes_max

    @property
    def hosts(self) -> int:
        """Number of hosts that have connected so far."""
        return self._hosts

    def saved(self) -> list[RestorableState]:
        """List what the host has, the newest first. Any thread may call it."""
        entries = self._catalogue.newest()
        return [
            RestorableState(one.names, self.gate.cost_s(one.tier, one.size_bytes), one.tier)
            for one in entries
            if one.names
        ]

    def holds(self, key: str) -> bool:
        """Return True if the host has a state."""
        return key in self._catalogue

    def find(self, links: Sequence[bytes]) -> StateOffer | None:
        """Return the saved state with the longest common beginning."""
        found = self._catalogue.find(links)
        if found is None:
            return None
        entry, tokens = found
        return StateOffer(entry.key, tokens, entry.size_bytes, entry.tier, entry.inputs, entry.saved_s)

    def fetch(self, offer: StateOffer, done: Callable[[SavedState | None], None]) -> None:
        """Ask the host for a state."""
        self._next_id += 1
        self._fetches[self._next_id] = _Fetch(offer, done, time.monotonic() + FETCH_DEADLINE_S)
        if not self._send(messages.encode("get", id=self._next_id, key=offer.key)):
            self._answer(self._next_id, None)

    def seek(
        self, node_id: str, links: Sequence[bytes], *, held_inputs: int, input_s: float, done: Callable[[], None]
    ) -> None:
        """Let the host bring a state from another node, if that pays."""
        self._next_id += 1
        number = self._next_id
        self._seeks[number] = _Seek(done, time.monotonic() + FETCH_DEADLINE_S)
        fields = {"node": node_id, "links": messages.links_text(links), "inputs": held_inputs, "input_s": input_s}
        if not self._send(messages.encode("seek", id=number, **fields)):
            self._end_seek(number)

    def settle(self, timeout_s: float) -> None:
        """Wait until the host has taken or refused every state that was put."""
        deadline_s = time.monotonic() + timeout_s
        for work in (self._work, self._slow_work):
            is_sent = threading.Event()
            work.put(is_sent.set)
            is_sent.wait(max(0.0, deadline_s - time.monotonic()))
        with self._confirmed:
            self._confirmed.wait_for(lambda: not self._unconfirmed, max(0.0, deadline_s - time.monotonic()))

    def reserve(
        self,
        size_bytes: int,
        done: Callable[[StateBuffer | None], None],
        *,
        pieces: bool = False,
        gives_way: bool = False,
    ) -> None:
        """Have a buffer of this size."""

        def make() -> None:
            try:
                file = MemoryFile(size_bytes, mapped=not pieces)
            except OSError as error:
                log.warning("state.no_memory", bytes=size_bytes, text=str(error))
                done(None)
                return
            done(file)

        self.run(make, gives_way=gives_way)

    def run(self, work: Callable[[], None], *, gives_way: bool = False) -> None:
        """Run work on a copying thread, in the order of the calls; with `gives_way` behind all that computes."""
        (self._slow_work if gives_way else self._work).put(work)

    def count(self, event: str) -> None:
        """Count an event."""
        metrics.STATES.labels(event).inc()

    # -- of the copying threads ---------------------------------------------------------------------------------------

    def put(self, state: NewState) -> None:
        """Seal a state and hand it to the host."""
        file = state.buffer
        assert isinstance(file, MemoryFile), "it was reserved here"
        place, checkpoints = state.state_bytes, {}
        for tokens, size in state.checkpoints:
            checkpoints[tokens] = (place, place + size)
            place += size
        index = StateIndex(
            inputs=list(state.inputs),
            state=(0, state.state_bytes),
            checkpoints=checkpoints,
            first_position=state.first_position,
        )
        try:
            size = file.seal(index.payload_bytes, trailer(index))
            entry = StateEntry(
                key=state.key,
                links=state.links,
                inputs=len(state.inputs),
                size_bytes=size,
                tier=Tier.RAM,
                saved_s=state.saved_s,
                names=state.prefix_names,
            )
            message = messages.encode(
                "put",
                **messages.entry_fields(entry),
                salt=state.salt,
                replaces=state.replaces,
                epoch=state.epoch,
            )
            with self._confirmed:
                self._unconfirmed.add(state.key)
            sent = self._send(message, file.descriptor)
            if not sent:
                self._confirm(state.key)
            self.count("saved" if sent else "not_sent")
            log.info("state.saved", tokens=len(state.inputs), bytes=size, sent=sent)
        except OSError as error:
            log.warning("state.not_saved", text=str(error))
            self.count("not_sent")
        finally:
            file.close()

    # -- of the receiving thread --------------------------------------------------------------------------------------

    def _receive_all(self) -> None:
        while True:
            watched = [self._listener] if self._host is None else [self._listener, self._host]
            readable, _, _ = select.select(watched, [], [], _LOOK_S)
            if self._closing.is_set():
                break
            if self._host in readable:
                self._receive()
            if self._listener in readable:
                self._accept()
            now_s = time.monotonic()
            for number in [number for number, fetch in list(self._fetches.items()) if fetch.deadline_s < now_s]:
                self._answer(number, None)
            for number in [number for number, seek in list(self._seeks.items()) if seek.deadline_s < now_s]:
                self._end_seek(number)
        self._listener.close()
        self._lose_host()

    def _accept(self) -> None:
        """Take the newest host: an earlier one is gone, or will be."""
        connection, _ = self._listener.accept()
        given = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(given)[1] not in (os.getuid(), 0):
            connection.close()
            return
        self._lose_host()
        self._host = connection

    def _lose_host(self) -> None:
        if self._host is not None:
            self._host.close()
        self._host, self._bytes_max = None, 0
        self._catalogue.clear()
        for number in list(self._fetches):
            self._answer(number, None)
        for number in list(self._seeks):
            self._end_seek(number)
        with self._confirmed:
            self._unconfirmed.clear()
            self._confirmed.notify_all()
        self.on_change()

    def _receive(self) -> None:
        assert self._host is not None, "it was readable"
        descriptors: list[int] = []
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._host, messages.MESSAGE_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC
            )
            if not data:
                self._lose_host()
                return
            self._take(messages.decode(data), descriptors)
        except (OSError, messages.BadMessage) as error:
            log.warning("state.host_lost", text=str(error))
            self._lose_host()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _take(self, message: Mapping[str, Any], descriptors: list[int]) -> None:
        match message["op"]:
            case "hello":
                self._bytes_max = messages.natural(message, "bytes_max")
                epoch = messages.natural(message, "epoch")
                self._on_engine(lambda: self._greeted(epoch))  # behind the orders to forget that came before
            case "have":
                for fields in message["entries"]:
                    self._catalogue.put(messages.read_entry(fields, tier=Tier(fields["tier"])))
                self.on_change()
            case "gone":
                for key in message["keys"]:
                    self._catalogue.remove(str(key))
                self.on_change()
            case "taken":
                self._confirm(messages.read_key(message, "key"))
            case "sought":
                self._end_seek(messages.natural(message, "id"))
            case "state":
                saved = self._open(messages.natural(message, "id"), descriptors)
                self._answer(messages.natural(message, "id"), saved)
            case "forget":
                epoch = messages.natural(message, "epoch")
                self._forget(messages.read_salt(message), lambda: self._obeyed(epoch))

    def _greeted(self, epoch: int) -> None:
        """On the engine's thread, which looks what there is to save then."""
        self._hosts += 1
        self._obeyed(epoch)

    def _obeyed(self, epoch: int) -> None:
        self.epoch = max(self.epoch, epoch)

    def _open(self, number: int, descriptors: list[int]) -> SavedState | None:
        fetch = self._fetches.get(number)
        if fetch is None or not descriptors:
            return None
        try:
            data = map_sealed(descriptors[0])
            index = read_index(data)
        except (OSError, ValueError, DamagedState) as error:
            log.warning("state.damaged", key=fetch.offer.key, text=str(error))
            self.count("damaged")
            return None
        payload = np.frombuffer(data, np.uint8)
        return SavedState(
            key=fetch.offer.key,
            inputs=index.inputs,
            state=payload[slice(*index.state)],
            checkpoints={tokens: payload[slice(*span)] for tokens, span in index.checkpoints.items()},
            first_position=index.first_position,
            size_bytes=len(data),
        )

    def _answer(self, number: int, saved: SavedState | None) -> None:
        fetch = self._fetches.pop(number, None)
        if fetch is None:
            return
        if saved is None:
            self._catalogue.remove(fetch.offer.key)
            self.count("missed")
        fetch.done(saved)

    def _end_seek(self, number: int) -> None:
        seek = self._seeks.pop(number, None)
        if seek is not None:
            seek.done()

    def _confirm(self, key: str) -> None:
        with self._confirmed:
            self._unconfirmed.discard(key)
            self._confirmed.notify_all()

    def _send(self, message: bytes, descriptor: int | None = None) -> bool:
        """Send one message, whole or not at all; the receiving thread notices a host that is gone."""
        host = self._host
        if host is None:
            return False
        with suppress(OSError):
            flags = socket.MSG_NOSIGNAL | (socket.MSG_DONTWAIT if descriptor is None else 0)
            socket.send_fds(host, [message], [] if descriptor is None else [descriptor], flags)
            return True
        return False
