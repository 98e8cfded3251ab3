"""A llama_context behind checks: llama.cpp answers a wrong argument by killing the process."""

import ctypes
from enum import IntEnum
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from runner.core.states.slices import ID_BYTES, UnknownFormat, give_owner
from runner.engine.bindings import library
from runner.engine.llama.batch import Batch, RowBatch

# Of sequences that llama.cpp's memory knows beside the slots, up to LLAMA_MAX_SEQ - 1: the last one is for slices, the
# others can hold cells that no slot has.
_SLICE_ID = 255


class DecodeResult(IntEnum):
    """Result of llama_decode; any other value is fatal."""

    DONE = 0
    NO_CELLS = 1
    ABORTED = 2
    INVALID = -1


class StatePart(IntEnum):
    """Part of a slot's state that is copied, as LLAMA_STATE_SEQ_FLAGS name it."""

    ALL = 0  # into an empty slot
    PARTIAL = 1  # what cannot go back: recurrent state, sliding windows


class EngineFailure(Exception):
    """The engine broke; its state is unknown and the process has to end."""


class Context:
    """One context of one model. Only the engine thread may call it."""

    def __init__(self, model_pointer: int, parameters: Any, *, vocabulary_size: int) -> None:
        """Create the context; it reserves everything that it will ever need.

        Raises:
            MemoryError: an allocation was refused; `engine_log.errors` says which.
        """
        pointer = llama.llama_init_from_model(model_pointer, parameters)
        if not pointer:
            raise MemoryError("the engine could not create the context")
        self.pointer: int = pointer
        self.cells: int = llama.llama_n_ctx(pointer)
        self.batch_tokens: int = llama.llama_n_batch(pointer)
        self.ubatch_tokens: int = llama.llama_n_ubatch(pointer)
        self.slots: int = llama.llama_n_seq_max(pointer)
        self.embedding: int = llama.llama_model_n_embd_inp(model_pointer)
        self.outputs_max: int = parameters.n_outputs_max or self.batch_tokens
        self._row_type = ctypes.c_float * vocabulary_size
        # Views by address: the engine's output buffer has one row for each output, at the same place in every step.
        self._rows: dict[int, NDArray[np.float32]] = {}
        self._memory = llama.llama_get_memory(pointer)
        self.shares_cells: bool = bool(parameters.kv_unified)
        # Set to False where slices turn out to have another format than `runner.core.states.slices` knows.
        self.gives_slices: bool = self.shares_cells and self.slots <= _SLICE_ID
        self.spare_ids = range(self.slots, _SLICE_ID if self.gives_slices else self.slots)
        # Slots whose cells llama.cpp copies or rotates only at the start of its next decode: moved cells already have
        # their new positions and still the old keys, so a state that is copied before is lost.
        self._unfinished: set[int] = set()
        # How far a recurrent state goes back behind what the slot's last call evaluated.
        self.rollback_tokens: int = llama.llama_n_rs_seq(pointer)
        # Last positions of slots whose state went back: their next call begins with an older one of its copies, which
        # llama.cpp does not remember for another slot that gets the same state.
        self._taken_back: dict[int, int] = {}
        self.can_shift: bool = bool(self._memory) and llama.llama_memory_can_shift(self._memory)

    def close(self) -> None:
        """Free the context."""
        llama.llama_free(self.pointer)

    def decode(self, batch: Batch | RowBatch) -> int:
        """Evaluate a batch. On a GPU this returns before the result is there; `synchronize` waits.

        Returns: DecodeResult.DONE or NO_CELLS; after NO_CELLS the memory is as before.

        Raises:
            EngineFailure: anything else.
        """
        assert 0 < batch.size <= self.batch_tokens, "batch size"
        assert batch.outputs <= self.outputs_max, "more outputs than reserved"
        result: int = library.decode(self.pointer, batch.struct)
        if result not in (DecodeResult.DONE, DecodeResult.NO_CELLS):
            raise EngineFailure(f"llama_decode returned {result}")
        self._unfinished.clear()  # llama.cpp finishes them before it looks for cells
        return result

    def set_causal(self, causal: bool) -> None:
        """Set whether an input of the next calls attends to earlier inputs only, or to the whole call."""
        llama.llama_set_causal_attn(self.pointer, causal)

    def set_threads(self, single: int, several: int) -> None:
        """CPU threads of the next calls: of those that hold one token, and of others."""
        assert single > 0, "threads"
        assert several > 0, "threads"
        llama.llama_set_n_threads(self.pointer, single, several)

    def synchronize(self) -> None:
        """Wait for the results of the last decode."""
        library.synchronize(self.pointer)

    def logits(self, index: int) -> NDArray[np.float32]:
        """Return the engine's own row float32[vocabulary] for the batch index; the next decode overwrites it."""
        address = library.logits_at(self.pointer, index)
        assert address, "no logits were asked for at this index"
        row = self._rows.get(address)
        if row is None:
            row = self._rows[address] = np.ctypeslib.as_array(self._row_type.from_address(address))
        return row

    def erase(self, slot_id: int, start: int, stop: int = -1) -> bool:
        """Erase positions [start, stop) of a slot (-1: to the end). False: only whole sequences can be erased."""
        self._check(slot_id)
        assert start >= 0, "positions"
        assert stop == -1 or start <= stop, "positions"
        if self.rollback_tokens and 0 < start <= self.last_position(slot_id):
            return False  # llama.cpp would agree, and take whatever copy an earlier call has left
        erased: bool = library.sequence_remove(self._memory, slot_id, start, stop)
        return erased

    def take_back(self, slot_id: int, start: int) -> bool:
        """Erase the positions from `start` on, all of them of the slot's last call; False: that is not possible."""
        self._check(slot_id)
        erased: bool = library.sequence_remove(self._memory, slot_id, start, -1)
        if self.rollback_tokens:
            self._taken_back[slot_id] = start - 1
        return erased

    def is_taken_back(self, slot_id: int) -> bool:
        """Return True between `take_back` of a recurrent state and the slot's next call: it cannot be copied."""
        return slot_id in self._taken_back and self._taken_back[slot_id] == self.last_position(slot_id)

    def copy(self, source_id: int, target_id: int, stop: int) -> None:
        """Let an empty slot use the cells [0, stop) of another one, or a copy of them where slots share none.

        The target may be a spare id, whose cells stay when the slot gives them up, until they are erased there too.
        """
        self._check(source_id)
        self._check(target_id)
        assert source_id != target_id, "copy onto itself"
        assert stop > 0, "copy of nothing"
        assert not self.is_taken_back(source_id), "the copy would have a newer state"
        if self.shares_cells:
            library.sequence_copy(self._memory, source_id, target_id, 0, stop)
            return
        # Between caches only everything can be copied: llama.cpp aborts otherwise.
        library.sequence_copy(self._memory, source_id, target_id, -1, -1)
        self._unfinished |= {source_id, target_id}
        self.erase(target_id, stop)

    def is_finished(self, slot_id: int) -> bool:
        """Return False between a move or a copy of cells and the decode that finishes it."""
        return slot_id not in self._unfinished

    def move(self, slot_id: int, start: int, stop: int, distance: int) -> None:
        """Renumber positions [start, stop) by `distance`."""
        self._check(slot_id)
        assert self.can_shift, "llama.cpp would abort"
        library.sequence_add(self._memory, slot_id, start, stop, distance)
        self._unfinished.add(slot_id)

    def first_position(self, slot_id: int) -> int:
        """Return the oldest position of a slot that is still in the cache; -1 if it is empty."""
        self._check(slot_id)
        position: int = library.sequence_first(self._memory, slot_id)
        return position

    def last_position(self, slot_id: int) -> int:
        """Return the newest position of a slot; -1 if it is empty."""
        self._check(slot_id)
        position: int = library.sequence_last(self._memory, slot_id)
        return position

    def state_bytes(self, slot_id: int, part: StatePart) -> int:
        """Size of what `save` would copy."""
        self._check(slot_id)
        size: int = llama.llama_state_seq_get_size_ext(self.pointer, slot_id, part)
        return size

    def save(self, slot_id: int, part: StatePart) -> NDArray[np.uint8]:
        """Return a copy of a slot's state. Empty if it could not be taken, as before the decode after a move."""
        data = np.empty(self.state_bytes(slot_id, part), np.uint8)
        return data if self.save_into(slot_id, data, part) else data[:0]

    def save_into(self, slot_id: int, data: NDArray[np.uint8], part: StatePart) -> bool:
        """Copy a slot's state into an array of its size. False, as before the decode after a move: it was not taken."""
        self._check(slot_id)
        if not self.is_finished(slot_id):
            return False
        copied = llama.llama_state_seq_get_data_ext(self.pointer, _bytes_of(data), data.size, slot_id, part)
        return bool(copied == data.size)

    def save_slice(self, slot_id: int, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the state of positions [start, stop) of a slot or spare id, in a cache that slots share.

        The cells belong to one more sequence while they are copied. `runner.core.states.slices` joins slices; the
        engine itself takes none back, because its id is not a slot's.
        """
        self._check(slot_id)
        assert self.gives_slices, "llama.cpp would abort"
        assert self.is_finished(slot_id), "keys that are not rotated yet"
        assert 0 <= start < stop, "positions"
        library.sequence_copy(self._memory, slot_id, _SLICE_ID, start, stop)
        size = llama.llama_state_seq_get_size_ext(self.pointer, _SLICE_ID, StatePart.ALL)
        data = np.empty(size, np.uint8)
        copied = llama.llama_state_seq_get_data_ext(self.pointer, _bytes_of(data), size, _SLICE_ID, StatePart.ALL)
        library.sequence_remove(self._memory, _SLICE_ID, -1, -1)
        return data[:copied]

    def save_window(self, slot_id: int, stop: int) -> NDArray[np.uint8]:
        """Return the windowed part of a slot's state as it was at position `stop`, in a cache that slots share.

        Empty as before the decode after a move, as in `save`. The window before `stop` must be there.

        Raises:
            UnknownFormat: the engine's bytes are not as `runner.core.states.slices` describes them.
        """
        self._check(slot_id)
        assert self.gives_slices, "llama.cpp would abort"
        if not self.is_finished(slot_id):
            return np.empty(0, np.uint8)
        library.sequence_copy(self._memory, slot_id, _SLICE_ID, 0, stop)
        cells = stop - library.sequence_first(self._memory, _SLICE_ID)
        size = llama.llama_state_seq_get_size_ext(self.pointer, _SLICE_ID, StatePart.PARTIAL)
        data = np.empty(cells * ID_BYTES + size, np.uint8)
        whole = data[cells * ID_BYTES :]
        copied = llama.llama_state_seq_get_data_ext(self.pointer, _bytes_of(whole), size, _SLICE_ID, StatePart.PARTIAL)
        library.sequence_remove(self._memory, _SLICE_ID, -1, -1)
        if copied != size:
            raise UnknownFormat("size")
        return give_owner(data, room_bytes=cells * ID_BYTES, slot_id=slot_id, stop=stop)

    def restore(self, slot_id: int, data: NDArray[np.uint8], part: StatePart) -> bool:
        """Put a copy back, which another slot of this context may have given.

        False, as before the decode after a move, leaves the slot without it.
        """
        self._check(slot_id)
        if not self.is_finished(slot_id):
            return False
        read = llama.llama_state_seq_set_data_ext(self.pointer, _bytes_of(data), data.size, slot_id, part)
        return bool(read == data.size)

    def _check(self, slot_id: int) -> None:
        assert 0 <= slot_id < self.slots or slot_id in self.spare_ids, "slot id: llama.cpp would abort"


def _bytes_of(data: NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
