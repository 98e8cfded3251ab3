"""States of slots, saved outside this process and brought back. Used by the engine thread between steps.

A state is copied at once where that delays no step too long, or while nothing is computed. In a cache that all slots
share, larger ones are copied in slices between steps; elsewhere they wait until no sequence runs.
"""

import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from common.clock import NS_PER_S
from common.telemetry.logs import get_logger
from runner.core.sequence.sequence_names import SequenceNames
from runner.core.states.chain import BLOCK_INPUTS, chain, state_key
from runner.core.states.slices import SliceJoiner, UnknownFormat
from runner.core.threads.step_times import StepTimes
from runner.engine.batched.parking import ParkedPrompt
from runner.engine.batched.sequence import Sequence
from runner.engine.batched.slot_table import Slot, SlotTable
from runner.engine.contract.states import NewState, SavedState, StateBuffer, StateBytes, StateOffer, StateStore
from runner.engine.llama.context import Context, StatePart

log = get_logger()

_SLICES_WAITING_MAX = 4  # copied, and not yet joined by the store's thread
# A running sequence is saved again when it has grown by so much: all copies together cost a few times the last one.
_GROWTH_TOKENS_MIN = 1024
_GROWTH_SHARE = 0.25
_ROOM_TOKENS = 64  # that a running sequence may grow by between the buffer and the copy
_LAST_SAVES_S = 3.0  # for all states when the engine stops


@dataclass(eq=False)
class _Save:
    """A state that is being saved."""

    slot: Slot
    tokens: int  # inputs that a save in slices copies
    sliced: bool
    state_bytes: int  # of them
    buffer: StateBuffer | None = None
    joiner: SliceJoiner | None = None
    copied_tokens: int = 0
    joined: int = 0  # slices whose joining by the store's thread was noted
    copied: int = 0  # slices
    failed: UnknownFormat | OSError | None = None  # why a slice was not joined
    cancelled: bool = False
    inputs: list[int] = field(default_factory=list)
    salt: str = ""
    prefix_names: tuple[int, ...] = ()


class StateKeeper:
    """Decides what is saved and restored, and copies it. Only the engine thread may use it."""

    def __init__(
        self,
        context: Context,
        slots: SlotTable,
        store: StateStore,
        times: StepTimes,
        *,
        space: bytes,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        """`space` is of everything beside the inputs; `post` runs a command on the engine thread."""
        self._context = context
        self._slots = slots
        self._store = store
        self._times = times
        self._space = space
        self._post = post
        self._gate = store.gate
        self._hosts = 0
        self._deadline_s = 0.0  # of the last saves
        self._save: _Save | None = None
        self._copies = slots.copies

    # -- restore ------------------------------------------------------------------------------------------------------

    def awaits(self, sequence: Sequence) -> bool:
        """Return True while a state is brought for a sequence that waits for a slot."""
        if sequence.fetching or sequence.looked_up or not sequence.request.cache_prompt:
            return sequence.fetching
        inputs, node_id = sequence.prepared.inputs, sequence.request.state_node_id
        sequence.looked_up = sequence.sought or not node_id
        if len(inputs) <= BLOCK_INPUTS or not self._store.bytes_max:
            return False
        # The last input is computed in any case: its logits are wanted.
        links = chain(self._space, sequence.request.cache_salt, inputs[:-1])
        if not sequence.looked_up:
            sequence.sought = sequence.fetching = True
            held = self._slots.prefix_tokens(sequence)
            done = partial(self._post, partial(self._fetched, sequence, None))
            self._store.seek(node_id, links, held_inputs=held, input_s=self._seconds(1), done=done)
            return True
        offer = self._store.find(links)
        if offer is None:
            return False
        gained = offer.tokens - self._slots.prefix_tokens(sequence)
        if gained < BLOCK_INPUTS or not self._pays(offer, gained):
            return False
        sequence.fetching = True
        sequence.fetch_ns, sequence.fetch_tier = time.monotonic_ns(), offer.tier
        self._store.fetch(offer, partial(self._when_fetched, sequence))
        return True

    def restored(self, sequence: Sequence) -> None:
        """Learn from a sequence that was given its slot, perhaps with a state from outside."""
        saved, sequence.saved_state = sequence.saved_state, None
        if saved is None:
            return
        slot = self._slots.slots[sequence.slot_id]
        if slot.saved[0] != saved.key or not slot.saved_tokens:
            self._store.count("unused")
            return
        seconds = (time.monotonic_ns() - sequence.fetch_ns) / NS_PER_S
        assert sequence.fetch_tier is not None, "it was fetched"
        self._gate.see(sequence.fetch_tier, size_bytes=saved.size_bytes, seconds=seconds)
        self._store.count("restored")
        log.info(
            "state.restored", slot=slot.id, tokens=slot.saved_tokens, bytes=saved.size_bytes, ms=round(seconds * 1000)
        )

    def _pays(self, offer: StateOffer, gained: int) -> bool:
        saved_s = self._seconds(gained) or offer.saved_s * gained / offer.inputs
        if saved_s and not self._gate.restores(offer.tier, size_bytes=offer.size_bytes, saved_s=saved_s):
            self._store.count("slower")
            return False
        return True

    def _when_fetched(self, sequence: Sequence, saved: SavedState | None) -> None:
        """On the store's thread: a state that does not stand for what its key says is none."""
        if saved is not None:
            links = chain(self._space, sequence.request.cache_salt, saved.inputs)
            if not links or state_key(links, saved.inputs) != saved.key:
                self._store.count("damaged")
                saved = None
        self._post(partial(self._fetched, sequence, saved))

    def _fetched(self, sequence: Sequence, saved: SavedState | None) -> None:
        sequence.fetching, sequence.saved_state = False, saved

    def _seconds(self, tokens: int) -> float:
        """Return the time to compute so many inputs; 0: not known yet."""
        cost = self._times.cost()
        return tokens * cost.token_s + cost.fixed_s * tokens / self._context.batch_tokens if cost.token_s else 0.0

    # -- save ---------------------------------------------------------------------------------------------------------

    def holds(self, slot: Slot) -> bool:
        """Return True if the state of an idle slot is about to be saved: what it holds stays until then."""
        being_saved = self._save is not None and self._save.slot is slot
        return being_saved or (self._slots.gives_slices(slot) and self._wants(slot))

    @property
    def saving(self) -> bool:
        """Return True while a state is being copied."""
        return self._save is not None and self._save.buffer is not None

    def work(self, *, running: bool) -> bool:
        """Copy a part of what is to be saved; False if nothing can be done now. `running`: steps are computed."""
        if self._store.hosts != self._hosts:
            self._hosts = self._store.hosts
            self._check_saved()
        save = self._save
        if save is None:
            return self._begin(running=running)
        if save.buffer is None and not save.cancelled:
            return False  # the store is still making room
        is_whole = save.slot.kept_tokens >= save.tokens and self._context.gives_slices
        if save.cancelled or save.failed or (save.sliced and not is_whole):
            self._give_up(save)
            return True
        if not save.sliced:
            if running and self._copies.delays(save.state_bytes):
                return False
            self._copy_whole(save)
            return True
        if save.copied - save.joined >= _SLICES_WAITING_MAX:
            return False  # the store's thread wakes this one
        self._copy_slice(save)
        return True

    def forget(self, salt: str) -> None:
        """Keep nothing of a tenant."""
        self._slots.forget(salt)
        if self._save is not None and self._save.salt == salt:
            self._save.cancelled = True

    def save_running(self) -> None:
        """Save running and paused sequences to their last token; the engine stops, and they go on elsewhere."""
        self._deadline_s = deadline_s = time.monotonic() + _LAST_SAVES_S
        begun, self._save = self._save, None
        if begun is not None and begun.buffer is not None:
            self._store.run(begun.buffer.close, gives_way=begun.sliced)
        self._save_slots(running=True)
        self._save_parked([one for one in self._slots.paused() if one.owner and not one.owner.forgotten])
        # Answers end here only once their states can be found: they go on at other replicas.
        self._store.settle(max(0.0, deadline_s - time.monotonic()))

    def save_idle(self) -> None:
        """Save what is left; no running sequence waits for it."""
        self._save_slots(running=False)
        self._save_parked(self._slots.parked())
        self._store.settle(max(0.0, self._deadline_s - time.monotonic()))

    def _save_slots(self, *, running: bool) -> None:
        for slot in list(self._unsaved(stopping=True)):
            if running != (slot.sequence is not None):
                continue
            save = self._plan(slot, sliced=False)
            if save.state_bytes > self._store.bytes_max:
                continue
            save.buffer = self._reserve_until(self._deadline_s, self._room(save))
            if save.buffer is not None:
                self._copy_whole(save)

    def _save_parked(self, prompts: list[ParkedPrompt]) -> None:
        """Save copies in the RAM of this process that the host does not have."""
        for parked in prompts:
            if len(parked.inputs) < BLOCK_INPUTS or not parked.is_kept or parked.state.size > self._store.bytes_max:
                continue
            links = chain(self._space, parked.salt, parked.inputs)
            key = state_key(links, parked.inputs)
            checkpoints = self._slots.checkpoints.copies(parked.id)
            parts = [parked.state, *checkpoints.values()]
            size = sum(part.size for part in parts)
            buffer = None if self._store.holds(key) else self._reserve_until(self._deadline_s, size)
            if buffer is None:
                continue
            buffer.array[:size] = np.concatenate(parts)
            state = NewState(
                key=key,
                buffer=buffer,
                inputs=parked.inputs,
                salt=parked.salt,
                links=links,
                epoch=self._store.epoch,
                state_bytes=parked.state.size,
                checkpoints=[(tokens, data.size) for tokens, data in checkpoints.items()],
                first_position=parked.first_position,
                saved_s=self._seconds(len(parked.inputs)),
                prefix_names=_names(parked.names, len(parked.inputs)),
            )
            self._store.run(partial(self._store.put, state))

    def _reserve_until(self, deadline_s: float, size_bytes: int) -> StateBuffer | None:
        """Wait for a buffer; None: there is no memory for it, or no time."""
        made = queue.SimpleQueue[StateBuffer | None]()
        self._store.reserve(size_bytes, made.put)
        try:
            return made.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            log.warning("state.not_saved", bytes=size_bytes)
            return None

    def _unsaved(self, *, stopping: bool = False) -> Iterator[Slot]:
        """Yield the slots to be saved, the next one first: idle ones, of which the newest is the likeliest to return.

        With `stopping` running ones are saved to their last token, because their answers go on elsewhere, and idle ones
        where a copy takes less time than what they have grown by.
        """
        for slot in sorted(self._slots.slots, key=lambda slot: (slot.sequence is not None, -slot.last_used)):
            if self._wants(slot, stopping=stopping):
                yield slot

    def _wants(self, slot: Slot, *, stopping: bool = False) -> bool:
        if slot.shifted or slot.forgotten or len(slot.held) < BLOCK_INPUTS or not self._store.bytes_max:
            return False
        grown = len(slot.held) - slot.saved_tokens
        if stopping and slot.sequence is not None:
            return grown > 0
        if stopping:
            size = self._context.state_bytes(slot.id, StatePart.ALL)
            return grown >= BLOCK_INPUTS or self._copies.seconds(size) < self._seconds(grown)
        if slot.sequence is not None:
            return grown >= max(_GROWTH_TOKENS_MIN, round(slot.saved_tokens * _GROWTH_SHARE))
        return grown >= BLOCK_INPUTS

    def _check_saved(self) -> None:
        """Have states saved again that a new host does not have."""
        for slot in self._slots.slots:
            if slot.saved_tokens and not self._store.holds(slot.saved[0]):
                slot.saved_tokens, slot.saved = 0, ("", 0)

    def _begin(self, *, running: bool) -> bool:
        for slot in self._unsaved():
            size = self._context.state_bytes(slot.id, StatePart.ALL)
            if size > self._store.bytes_max:
                slot.saved_tokens = len(slot.held)
                self._store.count("too_large")
                continue
            long = self._copies.delays(size)
            sliced = long and self._slots.gives_slices(slot)  # also while nothing runs: a request may come
            if long and running and not sliced:
                continue  # until nothing runs
            self._save = save = self._plan(slot, sliced=sliced)
            self._store.reserve(self._room(save), partial(self._when_reserved, save), pieces=sliced, gives_way=True)
            return False
        return False

    def _when_reserved(self, save: _Save, buffer: StateBuffer | None) -> None:
        """On the store's thread."""
        self._post(partial(self._reserved, save, buffer))

    def _plan(self, slot: Slot, *, sliced: bool) -> _Save:
        slot.kept_tokens = tokens = len(slot.held)
        size = self._context.state_bytes(slot.id, StatePart.ALL)
        inputs = slot.held[:tokens] if sliced else []
        names = _names(slot.names, len(slot.held))
        return _Save(slot, tokens, sliced, size, inputs=inputs, salt=slot.salt, prefix_names=names)

    def _room(self, save: _Save) -> int:
        """Return the bytes of the state and its checkpoints; a running sequence may grow before it is copied."""
        if save.sliced:
            return save.state_bytes
        checkpoints = self._slots.checkpoints.copies(save.slot.id).values()
        growth = _ROOM_TOKENS * (save.state_bytes // save.tokens + 1)
        return save.state_bytes + growth + sum(data.size for data in checkpoints)

    def _reserved(self, save: _Save, buffer: StateBuffer | None) -> None:
        save.buffer, save.cancelled = buffer, save.cancelled or buffer is None
        if buffer is not None and save.sliced:
            save.joiner = SliceJoiner(buffer, slot_id=save.slot.id, tokens=save.tokens)

    def _copy_whole(self, save: _Save) -> None:
        """Copy what the slot holds now."""
        slot = save.slot
        assert save.buffer is not None, "it was reserved"
        buffer = save.buffer.array
        checkpoints = self._slots.checkpoints.copies(slot.id)
        size = self._context.state_bytes(slot.id, StatePart.ALL)
        total = size + sum(data.size for data in checkpoints.values())
        fits = slot.salt == save.salt and not slot.shifted and not slot.forgotten and total <= buffer.size
        began_ns = time.monotonic_ns()
        if (
            not fits
            or len(slot.held) < BLOCK_INPUTS
            or not self._context.save_into(slot.id, buffer[:size], StatePart.ALL)
        ):
            self._give_up(save)
            return
        self._copies.see(size_bytes=size, seconds=(time.monotonic_ns() - began_ns) / NS_PER_S)
        place = size
        for data in checkpoints.values():
            buffer[place : place + data.size] = data
            place += data.size
        spans = [(tokens, data.size) for tokens, data in checkpoints.items()]
        save.inputs, save.state_bytes, save.prefix_names = list(slot.held), size, _names(slot.names, len(slot.held))
        self._put(save, spans, first_position=self._slots.first_copied_position(slot))

    def _copy_slice(self, save: _Save) -> None:
        """Copy the next inputs; the store's thread moves them to their place."""
        stop = min(save.tokens, save.copied_tokens + self._copies.slice_tokens(save.state_bytes / save.tokens))
        began_ns = time.monotonic_ns()
        piece = self._context.save_slice(save.slot.id, save.copied_tokens, stop)
        self._copies.see(size_bytes=piece.size, seconds=(time.monotonic_ns() - began_ns) / NS_PER_S)
        self._store.run(partial(self._join, save, piece, stop - save.copied_tokens), gives_way=True)
        save.copied_tokens, save.copied = stop, save.copied + 1
        if stop == save.tokens:
            self._put(save, [], first_position=0)

    def _join(self, save: _Save, piece: StateBytes, tokens: int) -> None:
        """On the store's thread."""
        assert save.joiner is not None, "slices are joined"
        began_ns = time.thread_time_ns()
        if not save.failed:
            try:
                save.joiner.add(piece, tokens)
            except (UnknownFormat, OSError) as error:
                log.warning("state.not_joined", text=repr(error))
                save.failed = error
        self._post(partial(self._joined, save, piece.size, (time.thread_time_ns() - began_ns) / NS_PER_S))

    def _joined(self, save: _Save, size_bytes: int, seconds: float) -> None:
        save.joined += 1
        if not save.failed:
            self._copies.see_join(size_bytes=size_bytes, seconds=seconds)

    def _put(self, save: _Save, checkpoints: list[tuple[int, int]], *, first_position: int) -> None:
        """Give a copied state to the store."""
        slot, inputs, buffer = save.slot, save.inputs, save.buffer
        assert buffer is not None, "it was copied"
        links = chain(self._space, save.salt, inputs)
        key, replaced = state_key(links, inputs), slot.saved[0] if slot.saved_tokens == slot.saved[1] else ""
        state = NewState(
            key=key,
            buffer=buffer,
            inputs=inputs,
            salt=save.salt,
            links=links,
            epoch=self._store.epoch,
            state_bytes=save.state_bytes,
            checkpoints=checkpoints,
            first_position=first_position,
            saved_s=self._seconds(len(inputs)),
            replaces=replaced if replaced != key else "",
            prefix_names=save.prefix_names,
        )
        self._save = None
        slot.saved_tokens, slot.saved = len(inputs), (key, len(inputs))
        self._store.run(partial(_put, self._store, save, state), gives_way=save.sliced)

    def _give_up(self, save: _Save) -> None:
        self._save = None
        if isinstance(save.failed, UnknownFormat):
            self._context.gives_slices = False
        if save.buffer is None or isinstance(save.failed, OSError):
            save.slot.saved_tokens = len(save.slot.held)  # no memory: not before it has changed
        if save.buffer is not None:
            self._store.run(save.buffer.close, gives_way=save.sliced)
        self._store.count("given_up")


def _names(names: SequenceNames | None, inputs: int) -> tuple[int, ...]:
    """Return the names of what so many inputs hold."""
    return names.within(inputs) if names is not None else ()


def _put(store: StateStore, save: _Save, state: NewState) -> None:
    """On the store's thread, behind the last slice."""
    if save.failed:
        state.buffer.close()
    else:
        store.put(state)
