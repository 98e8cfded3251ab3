"""Slices of a state against the whole: damaged ones are refused, never written beyond it."""

import random

import numpy as np
import pytest

from runner.core.states.slices import SliceJoiner, UnknownFormat
from tests.unit.runner.state_bytes import state_of


@pytest.mark.parametrize("ids", [0, 1])
def test_joined_slices_are_the_whole(ids: int) -> None:
    """The cells of a slice are in the order in which they lie, as those of a whole state are."""
    slices = [list(range(32)), [*range(50, 64), *range(32, 50)], list(range(64, 100))]
    expected = state_of([position for positions in slices for position in positions], slot=3)
    whole = np.zeros_like(expected)
    joiner = SliceJoiner(whole, slot_id=3, tokens=100)
    for positions in slices:
        assert not joiner.complete
        joiner.add(state_of(positions, ids=ids, slot=255), len(positions))
    assert joiner.complete
    assert np.array_equal(whole, expected)


def test_damaged_slices_are_refused_and_nothing_outside_is_written() -> None:
    draw, good, refused = random.Random(5), state_of(range(32)), 0
    for _ in range(3000):
        piece = good.copy()
        match draw.randrange(3):
            case 0:
                piece = piece[: draw.randrange(piece.size)]
            case 1:
                piece[draw.randrange(16 + 32 * 12 + 8 + 12)] ^= 1 << draw.randrange(8)
            case _:
                piece = np.concatenate([piece, piece[: draw.randrange(1, 50)]])
        around = np.full(state_of(range(64)).size + 200, 7, np.uint8)
        joiner = SliceJoiner(around[100:-100], slot_id=0, tokens=64)
        try:
            joiner.add(piece, 32)
        except UnknownFormat:
            refused += 1
        assert (around[:100] == 7).all()
        assert (around[-100:] == 7).all()
    assert refused > 2500, "what is not refused has another number where any is right, such as the id of a sequence"
