"""Bytes of states as llama.cpp writes them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LAYERS, ROW = 3, 16
MAGIC = 0xAF143CD8


def state_of(positions: Sequence[int], *, ids: int = 1, slot: int = 0) -> NDArray[np.uint8]:
    """Build the state of a sequence with these cells, in order; each row has its position, layer and kind."""
    words = [MAGIC, slot, 1, len(positions)]
    for position in positions:
        words += [position, ids] + [slot] * ids
    words += [0, LAYERS]
    parts = [np.array(words, np.uint32).tobytes()]
    for kind in range(2):
        for layer in range(LAYERS):
            parts.append(np.array([1], np.int32).tobytes() + ROW.to_bytes(8, "little"))
            parts += [bytes([position % 256, layer, kind]).ljust(ROW, b"x") for position in positions]
    return np.frombuffer(b"".join(parts), np.uint8)


def positions_in(state: NDArray[np.uint8]) -> list[int]:
    """Return the positions of a whole state's cells, whose rows are theirs."""
    count = int(state[12:16].view(np.uint32)[0])
    positions: list[int] = state[16 : 16 + 12 * count].view(np.uint32)[::3].tolist()
    assert np.array_equal(state, state_of(positions, slot=int(state[4:8].view(np.uint32)[0])))
    return positions
