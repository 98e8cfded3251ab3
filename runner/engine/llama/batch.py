"""The arrays of one decode call, kept for the life of the context and filled through numpy."""

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from runner.core.sequence.media import EncodedUnit


class CallArrays:
    """Arrays of every llama_batch: one sequence per input, and a flag for each wanted output.

    C reads these arrays during decode: they are owned here and never replaced.
    """

    def __init__(self, *, capacity: int, slots: int) -> None:
        """`capacity` is the context's n_batch."""
        self.capacity = capacity
        self.size = 0
        self.outputs = 0
        self._sequence_counts = np.ones(capacity, np.int32)
        self._slot_ids = np.arange(slots, dtype=np.int32)
        self._sequences = np.zeros(capacity, np.uint64)  # addresses into _slot_ids
        self._wanted = np.zeros(capacity, np.int8)
        self._slot_addresses = [self._slot_ids.ctypes.data + 4 * slot for slot in range(slots)]

    def clear(self) -> None:
        """Start a new call."""
        self.size = 0
        self.outputs = 0

    def _struct(
        self,
        *,
        positions: NDArray[np.int32],
        tokens: NDArray[np.int32] | None = None,
        rows: NDArray[np.float32] | None = None,
    ) -> Any:
        """Return the llama_batch over these arrays."""
        return llama.llama_batch(
            0,
            None if tokens is None else tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            None if rows is None else rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            self._sequence_counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            self._sequences.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )


class Batch(CallArrays):
    """A llama_batch of tokens."""

    def __init__(self, *, capacity: int, slots: int) -> None:
        """`capacity` is the context's n_batch."""
        super().__init__(capacity=capacity, slots=slots)
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self.struct = self._struct(tokens=self._tokens, positions=self._positions)

    def add(self, slot_id: int, position: int, tokens: Sequence[int], *, wants_logits: bool, drafted: int = 0) -> int:
        """Append inputs of one slot from `position` on; return the index of the first with logits: the last undrafted.

        `drafted` inputs at the end are guesses, whose logits are wanted, too.
        """
        start, stop = self.size, self.size + len(tokens)
        assert tokens, "an empty row"
        assert stop <= self.capacity, "batch over capacity: llama.cpp would abort"
        if stop - start == 1:
            self._tokens[start] = tokens[0]
            self._positions[start] = position
            self._sequences[start] = self._slot_addresses[slot_id]
        else:
            self._tokens[start:stop] = tokens
            self._positions[start:stop] = np.arange(position, position + len(tokens), dtype=np.int32)
            self._sequences[start:stop] = self._slot_addresses[slot_id]
            self._wanted[start:stop] = 0
        first = stop - 1 - drafted
        self._wanted[first:stop] = wants_logits
        self.size = stop
        self.outputs += wants_logits * (1 + drafted)
        self.struct.n_tokens = stop
        return first

    def want_all(self) -> None:
        """Make every input an output, as pooling needs it."""
        self._wanted[: self.size] = 1
        self.outputs = self.size


class RowBatch(CallArrays):
    """A llama_batch of embeddings; a batch holds either these or tokens."""

    def __init__(self, *, capacity: int, slots: int, embedding: int, components: int) -> None:
        """`capacity` is the context's n_batch, `components` how many numbers a position has."""
        super().__init__(capacity=capacity, slots=slots)
        self._components = components
        self._rows = np.zeros((capacity, embedding), np.float32)
        self._places = np.zeros((components, capacity), np.int32)
        self._positions = np.zeros(components * capacity, np.int32)
        self.struct = self._struct(rows=self._rows, positions=self._positions)

    def add(self, slot_id: int, start: int, unit: EncodedUnit, first: int, count: int, *, wants_logits: bool) -> int:
        """Append rows of a unit that begins at position `start`; return the index of the last."""
        begin, end = self.size, self.size + count
        assert count > 0, "an empty row"
        assert end <= self.capacity, "batch over capacity: llama.cpp would abort"
        self._rows[begin:end] = unit.rows[first : first + count]
        self._places[:, begin:end] = unit.positions_from(start, first, count)
        self._sequences[begin:end] = self._slot_addresses[slot_id]
        self._wanted[begin:end] = 0
        self._wanted[end - 1] = wants_logits
        self.size = end
        self.outputs += wants_logits
        return end - 1

    def seal(self) -> None:
        """Nothing is added any more: llama.cpp wants one component of all rows behind the other."""
        self.struct.n_tokens = self.size
        self._positions[: self._components * self.size] = self._places[:, : self.size].reshape(-1)
