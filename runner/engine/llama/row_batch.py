"""The arrays of one decode call of embedding rows, kept for the life of the context."""

import numpy as np

from runner.core.sequence.media import EncodedUnit
from runner.engine.llama.batch import CallArrays


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
