"""Slices of a state against the whole: damaged ones are refused, never written beyond it."""

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.core.states.slices import SliceJoiner, UnknownFormat

LAYERS, ROW = 3, 16
MAGIC = 0xAF143CD8


def state(start: int, stop: int, *, ids: int, slot: int = 0) -> NDArray[np.uint8]:
    """Build the bytes that llama.cpp writes for positions of a sequence; each row has its position, layer and kind."""
    words = [MAGIC, slot, 1, stop - start]
    for position in range(start, stop):
        words += [position, ids] + [slot] * ids
    words += [0, LAYERS]
    parts = [np.array(words, np.uint32).tobytes()]
    for kind in range(2):
        for layer in range(LAYERS):
            parts.append(np.array([1], np.int32).tobytes() + ROW.to_bytes(8, "little"))
            parts += [bytes([position % 256, layer, kind]).ljust(ROW, b"x") for position in range(start, stop)]
    return np.frombuffer(b"".join(parts), np.uint8)


@pytest.mark.parametrize("ids", [0, 1])
def test_joined_slices_are_the_whole(ids: int) -> None:
    whole = np.zeros_like(state(0, 100, ids=1, slot=3))
    joiner = SliceJoiner(whole, slot_id=3, tokens=100)
    for start, stop in ((0, 32), (32, 64), (64, 100)):
        assert not joiner.complete
        joiner.add(state(start, stop, ids=ids, slot=255), stop - start)
    assert joiner.complete
    assert np.array_equal(whole, state(0, 100, ids=1, slot=3))


def test_damaged_slices_are_refused_and_nothing_outside_is_written() -> None:
    draw, good, refused = random.Random(5), state(0, 32, ids=1), 0
    for _ in range(3000):
        piece = good.copy()
        match draw.randrange(3):
            case 0:
                piece = piece[: draw.randrange(piece.size)]
            case 1:
                piece[draw.randrange(16 + 32 * 12 + 8 + 12)] ^= 1 << draw.randrange(8)
            case _:
                piece = np.concatenate([piece, piece[: draw.randrange(1, 50)]])
        around = np.full(state(0, 64, ids=1).size + 200, 7, np.uint8)
        joiner = SliceJoiner(around[100:-100], slot_id=0, tokens=64)
        try:
            joiner.add(piece, 32)
        except UnknownFormat:
            refused += 1
        assert (around[:100] == 7).all()
        assert (around[-100:] == 7).all()
    assert refused > 2500, "what is not refused has another number where any is right, such as the id of a sequence"
