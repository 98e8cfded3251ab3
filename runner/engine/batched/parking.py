"""Prompts of idle slots, moved from the cache to host RAM.

In a unified cache every token looks at the mask of every cell that is used, idle ones too: 10,000 idle cells made a
step of a small model half as long again. Moving an idle prompt out and back costs a copy, computing it again far more.
A windowed or recurrent memory is moved with its checkpoints, so that a shorter prefix of it can be taken as well.

The slot is free at once. A large state is copied in slices between steps where the cache allows: until then a spare id
of the context keeps its cells.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.clock import NS_PER_S
from common.telemetry.logs import get_logger
from runner.core.sequence.batching import CallCost
from runner.core.sequence.sequence_names import SequenceNames
from runner.core.sequence.slots import SharedCells, SlotChoice, SlotView
from runner.core.states.gate import CopySpeed
from runner.core.states.slices import SliceJoiner, UnknownFormat
from runner.engine.batched.checkpoint_store import CheckpointStore
from runner.engine.batched.sequence import Sequence
from runner.engine.contract.engine import ParkedPrefix
from runner.engine.contract.states import SavedState
from runner.engine.llama.context import Context, StatePart

log = get_logger()

# So many idle cells cost too little to notice.
IDLE_CELLS_MAX = 1024
# All of a prompt is copied back, even if only its beginning is wanted; fewer inputs than this are never worth it.
WORTH_TOKENS_MIN = 32
# Only the newest ones are reported.
TOLD_MAX = 64


class SlotContent(NamedTuple):
    """Inputs of a slot, and the properties that a copy of its state needs."""

    inputs: list[int]
    sequence_id: int | None  # whose prompt it begins with; None: no prompt's
    salt: str = ""  # of its last request
    first_position: int = 0  # the oldest one that the memory still has
    slices: bool = False  # its state can be copied in slices
    names: SequenceNames | None = None  # of the beginnings of its last request
    is_kept: bool = False  # also outside this process


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedPrompt:
    """The inputs of a slot and the state that they left in its cells."""

    id: int
    inputs: list[int]
    state: NDArray[np.uint8]
    sequence_id: int | None  # of the prompt that it begins with; None: of none
    salt: str  # of that request
    first_position: int  # the oldest one that the state holds; > 0 only with a sliding window
    is_guest: bool = False  # brought for one sequence, by a decision that is made already; not in RAM of this process
    owner: Sequence | None = None  # paused; it needs all of it, so nothing else makes it go
    names: SequenceNames | None = None  # of the beginnings of that request
    is_kept: bool = False  # also outside this process


@dataclass(eq=False, slots=True, kw_only=True)
class _Copying:
    """A state that is copied in slices."""

    parked_id: int
    spare_id: int  # has its cells
    joiner: SliceJoiner
    tokens: int
    copied_tokens: int = 0


class Guest(NamedTuple):
    """A state from outside, while a sequence is given its slot."""

    id: int
    key: str
    tokens: int


class ParkingLot:
    """Parked prompts, oldest first, bounded in bytes. Only the engine thread may use it."""

    def __init__(
        self,
        context: Context,
        checkpoints: CheckpointStore,
        copies: CopySpeed,
        cost: Callable[[], CallCost],
        *,
        bytes_max: int,
        recurrent: bool,
        shared: SharedCells,
    ) -> None:
        """Share `bytes_max` with the checkpoints; 0 turns parking off. `recurrent`: the memory has such a state."""
        self._context = context
        self._checkpoints = checkpoints
        self._bytes_max = bytes_max
        self._recurrent = recurrent
        self._copies = copies
        self._cost = cost
        self._shared = shared
        self._copying: list[_Copying] = []
        self._prompts: dict[int, ParkedPrompt] = {}
        self._next_id = context.slots  # ids of slots and of parked prompts never meet
        self.enabled = bytes_max > 0

    def views(self, sequence: Sequence | None = None) -> list[SlotView]:
        """Return the parked prompts as sources of a prefix for a sequence; none can run in them."""
        return [
            SlotView(
                slot_id=parked.id,
                held=parked.inputs,
                busy=True,
                last_used=0,
                first_position=parked.first_position,
                checkpoints=self._checkpoints.places(parked.id),
                worth_tokens=0
                if parked.is_guest or (parked.owner is not None and parked.owner is sequence)
                else self._worth_tokens(parked.state.size),
                salt=parked.salt,
            )
            for parked in self._prompts.values()
        ]

    @property
    def holders(self) -> tuple[ParkedPrefix, ...]:
        """Prompts that are parked from the beginning on, the newest first, with the measured time to copy them back."""
        known = [
            ParkedPrefix(parked.sequence_id, self._copies.seconds(parked.state.size))
            for parked in reversed(self._prompts.values())
            if parked.sequence_id is not None
        ]
        return tuple(known[:TOLD_MAX])

    def park(self, slot_id: int, content: SlotContent) -> bool:
        """Copy what a slot holds, and its checkpoints; False if that is too large or gains nothing."""
        size_bytes = self._context.state_bytes(slot_id, StatePart.ALL)
        if size_bytes > self._bytes_max // 2:
            return False
        if self._recurrent and size_bytes == self._context.state_bytes(slot_id, StatePart.PARTIAL):
            return False  # no attention: idle slots cost the others nothing
        return self._copy(slot_id, content)

    def hold(self, slot_id: int, content: SlotContent, owner: Sequence) -> bool:
        """Copy what a slot holds for its sequence, which loses the slot, until `release`; else as `park`."""
        size_bytes = self._context.state_bytes(slot_id, StatePart.ALL)
        owner.keeps_slot = size_bytes > self._bytes_max
        held_bytes = sum(parked.state.size for parked in self.owned)
        if size_bytes + held_bytes + self._checkpoints.size_bytes > self._bytes_max:
            return False
        return self._copy(slot_id, content, owner)

    def release(self, owner: Sequence) -> None:
        """Drop the copy of a sequence that has a slot again, or has ended."""
        for parked in self.owned:
            if parked.owner is owner:
                self._drop(parked.id)

    @property
    def idle(self) -> list[ParkedPrompt]:
        """Return the copies of idle prompts, the newest first."""
        return [one for one in reversed(self._prompts.values()) if one.owner is None and not one.is_guest]

    @property
    def owned(self) -> list[ParkedPrompt]:
        """Copies of paused sequences."""
        return [parked for parked in self._prompts.values() if parked.owner is not None]

    def _copy(self, slot_id: int, content: SlotContent, owner: Sequence | None = None) -> bool:
        inputs, salt = content.inputs, content.salt
        state = self._begin_slices(slot_id, len(inputs)) if content.slices else None
        if state is None:
            began_ns = time.monotonic_ns()
            state = self._context.save(slot_id, StatePart.ALL)
            if state.size == 0:
                return False
            self._see_copy(state.size, began_ns)
        # A conversation that went on replaces its own beginning.
        for known in list(self._prompts.values()):
            if known.owner is None and known.salt == salt and known.inputs == inputs[: len(known.inputs)]:
                self._drop(known.id)
        self._checkpoints.fork(slot_id, self._next_id, len(inputs))
        self._prompts[self._next_id] = ParkedPrompt(
            id=self._next_id,
            inputs=list(inputs),
            state=state,
            sequence_id=content.sequence_id,
            salt=salt,
            first_position=content.first_position,
            owner=owner,
            names=content.names,
            is_kept=content.is_kept,
        )
        self._next_id += 1
        self.make_room()
        log.info("slot.parked", slot=slot_id, tokens=len(inputs), bytes=state.size)
        return True

    def _begin_slices(self, slot_id: int, tokens: int) -> NDArray[np.uint8] | None:
        """Keep the cells of a slot and return the array that its state is copied into; None: copy it at once."""
        size = self._context.state_bytes(slot_id, StatePart.ALL)
        used = {one.spare_id for one in self._copying}
        spare_id = next((one for one in self._context.spare_ids if one not in used), None)
        if spare_id is None or not self._copies.delays(size) or not self._context.is_finished(slot_id):
            return None
        self._context.copy(slot_id, spare_id, tokens)
        self._shared.fork(slot_id, spare_id, tokens)
        state = np.empty(size, np.uint8)
        joiner = SliceJoiner(state, slot_id=slot_id, tokens=tokens)
        self._copying.append(_Copying(parked_id=self._next_id, spare_id=spare_id, joiner=joiner, tokens=tokens))
        return state

    @property
    def copies_slices(self) -> bool:
        """Return True while a state is being copied in slices."""
        return bool(self._copying)

    def copy_slice(self) -> bool:
        """Copy a part of the oldest state whose slot is free already; False if there is none."""
        if not self._context.gives_slices:  # their format has turned out to be another one
            for one in list(self._copying):
                self._drop(one.parked_id)  # computed again when they are wanted
        if not self._copying:
            return False
        copying, began_ns = self._copying[0], time.monotonic_ns()
        token_bytes = self._prompts[copying.parked_id].state.size / copying.tokens
        start = copying.copied_tokens
        stop = min(copying.tokens, start + self._copies.slice_tokens(token_bytes))
        piece = self._context.save_slice(copying.spare_id, start, stop)
        self._see_copy(piece.size, began_ns)
        began_ns = time.thread_time_ns()
        try:
            copying.joiner.add(piece, stop - start)
        except UnknownFormat as error:
            log.warning("state.unknown_format", text=str(error))
            self._context.gives_slices = False
            return self.copy_slice()
        self._copies.see_join(size_bytes=piece.size, seconds=(time.thread_time_ns() - began_ns) / NS_PER_S)
        copying.copied_tokens = stop
        if copying.joiner.complete:
            self._give_cells_up(copying)
        return True

    def finish(self) -> bool:
        """Copy what is left of all states whose slots are free; False if there were none."""
        had_some = bool(self._copying)
        while self.copy_slice():
            pass
        return had_some

    def _give_cells_up(self, copying: _Copying) -> None:
        self._copying.remove(copying)
        self._context.erase(copying.spare_id, 0)
        self._shared.cut(copying.spare_id, 0)

    def admit(self, saved: SavedState, *, salt: str) -> Guest:
        """Take a state from outside as a source of a prefix, until it is dismissed."""
        guest_id = self._next_id
        self._next_id += 1
        self._checkpoints.adopt(guest_id, saved.checkpoints)
        self._prompts[guest_id] = ParkedPrompt(
            id=guest_id,
            inputs=saved.inputs,
            state=saved.state,
            sequence_id=None,
            salt=salt,
            first_position=saved.first_position,
            is_guest=True,
        )
        return Guest(guest_id, saved.key, len(saved.inputs))

    def dismiss(self, guest: Guest) -> None:
        """Drop a state from outside, unless a slot took all of it."""
        if guest.id in self._prompts:
            self._drop(guest.id)

    def forget(self, salt: str) -> None:
        """Drop every prompt of a salt; paused sequences go on, and nothing of them is kept afterwards."""
        for parked in [parked for parked in self._prompts.values() if parked.salt == salt]:
            if parked.owner is not None:
                parked.owner.forgotten = True
            else:
                self._drop(parked.id)

    def unpark(self, choice: SlotChoice, stop: int) -> bool:
        """Put the first inputs, up to position `stop`, into an empty slot; False leaves the slot empty."""
        parked = self._prompts[choice.source_id]
        slot_id, tokens = choice.slot_id, choice.prefix_tokens
        whole = tokens == len(parked.inputs)
        if any(copying.parked_id == parked.id for copying in self._copying):
            self.finish()
        restored = parked.id in self._prompts and self._restore(slot_id, parked)
        if not restored and self.finish():  # which frees cells
            restored = self._restore(slot_id, parked)
        if restored and choice.restores:
            restored = self._checkpoints.restore(slot_id, source_id=parked.id, tokens=tokens)
        if restored and (whole or self._context.erase(slot_id, stop)):
            self._checkpoints.fork(parked.id, slot_id, tokens)
            if whole and parked.owner is None:
                self._drop(parked.id)  # the slot holds all of it now
            return True
        self._context.erase(slot_id, 0)
        return False

    def _restore(self, slot_id: int, parked: ParkedPrompt) -> bool:
        began_ns = time.monotonic_ns()
        restored = self._context.restore(slot_id, parked.state, StatePart.ALL)
        self._see_copy(parked.state.size, began_ns)
        return restored

    def make_room(self) -> None:
        """Drop the oldest prompts until the rest fits beside the checkpoints."""
        while self._bytes + self._checkpoints.size_bytes > self._bytes_max:
            oldest = next((parked.id for parked in self._prompts.values() if parked.owner is None), None)
            if oldest is None:
                return
            self._drop(oldest)

    def _see_copy(self, size_bytes: int, began_ns: int) -> None:
        self._copies.see(size_bytes=size_bytes, seconds=(time.monotonic_ns() - began_ns) / NS_PER_S)

    def _worth_tokens(self, size_bytes: int) -> int:
        """Return the fewest inputs whose computation takes as long as copying a state back, by measured speeds."""
        token_s = self._cost().token_s
        return max(WORTH_TOKENS_MIN, ceil(self._copies.seconds(size_bytes) / token_s)) if token_s else WORTH_TOKENS_MIN

    @property
    def _bytes(self) -> int:
        return sum(parked.state.size for parked in self._prompts.values() if not parked.is_guest)

    def _drop(self, parked_id: int) -> None:
        for copying in [one for one in self._copying if one.parked_id == parked_id]:
            self._give_cells_up(copying)
        del self._prompts[parked_id]
        self._checkpoints.cut(parked_id, 0)
