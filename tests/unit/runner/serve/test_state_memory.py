"""Memory files of states, written in pieces or through a mapping."""

import os

import numpy as np
import pytest

from runner.sealed_memory import is_sealed
from runner.serve.state_memory import MemoryFile, map_sealed

SIZE = 1 << 20


def test_pages_are_allocated_as_pieces_are_written() -> None:
    """A buffer that is filled with zeros at once takes the cores from those that compute."""
    file = MemoryFile(SIZE)
    assert os.fstat(file.descriptor).st_blocks == 0
    file[SIZE // 2 : SIZE // 2 + 9] = np.full(9, 7, np.uint8)
    assert 0 < os.fstat(file.descriptor).st_blocks * 512 < SIZE // 2
    file.close()


@pytest.mark.parametrize("mapped", [False, True])
def test_a_sealed_file_holds_what_was_written(mapped: bool) -> None:
    file, data = MemoryFile(SIZE, mapped=mapped), np.random.default_rng(1).integers(0, 256, size=SIZE, dtype=np.uint8)
    whole = file.array if mapped else file
    for start in (SIZE // 3, 0):  # in any order, and not from page to page
        stop = SIZE if start else SIZE // 3
        whole[start:stop] = data[start:stop]
    assert file.seal(SIZE - 100, b"trailer") == SIZE - 93
    assert is_sealed(file.descriptor)
    view = map_sealed(file.descriptor)
    file.close()
    assert view == data[: SIZE - 100].tobytes() + b"trailer"


def test_a_mapped_file_has_all_its_pages() -> None:
    file = MemoryFile(SIZE, mapped=True)
    assert os.fstat(file.descriptor).st_blocks * 512 == SIZE
    file.close()
