"""Join the states of consecutive ranges of one sequence into the state of the whole. Pure.

llama.cpp copies a sequence at once. Cells of a shared cache can belong to a second sequence as well, for a range of
positions; the state of that one is a slice. Slices and whole have one format, so rows are moved, never computed:

    magic, sequence id, streams = 1, cells n | n x (position, ids = 0 or 1, id...) | transposed = 0, layers
    | for each layer: type of keys, bytes of a row (8 bytes), n rows | for each layer: the same for values

Source: `llama_kv_cache::state_write` of the pinned llama.cpp; every number is checked, and the size of the whole is
that which the engine announces, so another format is found out and refused.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_HEADER_WORDS = 4
_WORD_BYTES = ID_BYTES = 4
_ROW_HEAD_BYTES = 12  # type, and bytes of a row
_CELL_BYTES = 12  # position, number of ids, id

Bytes = NDArray[np.uint8]


class UnknownFormat(Exception):
    """The engine's bytes are not as described above."""


def give_owner(data: Bytes, *, room_bytes: int, slot_id: int, stop: int) -> Bytes:
    """Return the state of a sequence without an id of its own as the state of a slot, in the same memory.

    Args:
        data: `room_bytes` of nothing, ID_BYTES for each cell or more, and the state behind them.
        room_bytes: a multiple of ID_BYTES.
        slot_id: of the slot.
        stop: the position behind the last one of the state.

    Raises:
        UnknownFormat: the state is not as described above.
    """
    header = _words(data, room_bytes, _HEADER_WORDS).copy()
    cells = int(header[3])
    start = room_bytes - cells * ID_BYTES
    if header[2] != 1 or not cells or start < 0:
        raise UnknownFormat("header")
    words = _words(data, room_bytes + header.nbytes, 2 * cells).reshape(cells, 2).copy()
    if words[:, 1].any() or (np.sort(words[:, 0]) != np.arange(stop - cells, stop)).any():
        raise UnknownFormat("cells")
    header[1] = slot_id
    own = np.full((cells, _CELL_BYTES // _WORD_BYTES), (0, 1, slot_id), np.uint32)
    own[:, 0] = words[:, 0]
    meta = np.concatenate([header, own.ravel()]).view(np.uint8)
    data[start : start + meta.size] = meta
    return data[start:]


class Whole(Protocol):
    """An array, or something else that slices of bytes are assigned to."""

    @property
    def size(self) -> int:
        """Bytes of it."""

    def __setitem__(self, place: slice, data: Bytes) -> None:
        """Write bytes."""


class SliceJoiner:
    """Fills a whole state from its slices, in order."""

    def __init__(self, whole: Whole, *, slot_id: int, tokens: int) -> None:
        """`whole` has the size that the engine announces for the state of `tokens` inputs."""
        self._whole = whole
        self._slot_id = slot_id
        self._tokens = tokens
        self._joined = 0

    @property
    def complete(self) -> bool:
        """Return True once every input is there."""
        return self._joined == self._tokens

    def add(self, piece: Bytes, tokens: int) -> None:
        """Move the rows of the next `tokens` inputs to their places.

        Raises:
            UnknownFormat: the sizes do not add up.
        """
        header = _words(piece, 0, _HEADER_WORDS)
        if int(header[2]) != 1 or int(header[3]) != tokens or self._joined + tokens > self._tokens:
            raise UnknownFormat("header")
        ids = int(_words(piece, _HEADER_WORDS * _WORD_BYTES, 2)[1])
        if ids > 1:
            raise UnknownFormat("ids of a cell")
        cell_words = 2 + ids
        place = _HEADER_WORDS * _WORD_BYTES
        cells = _words(piece, place, tokens * cell_words).reshape(tokens, cell_words)
        # A sequence that goes on in cells that were freed has later positions in front of earlier ones.
        if (cells[:, 1] != ids).any() or (np.diff(np.sort(cells[:, 0]).astype(np.int64)) != 1).any():
            raise UnknownFormat("cells")
        place += cells.nbytes
        target = _HEADER_WORDS * _WORD_BYTES
        own = np.empty((tokens, _CELL_BYTES // _WORD_BYTES), np.uint32)
        own[:, 0], own[:, 1], own[:, 2] = cells[:, 0], 1, self._slot_id
        self._put(target + self._joined * _CELL_BYTES, own.view(np.uint8).ravel())
        target += self._tokens * _CELL_BYTES
        self._put(0, np.array([header[0], self._slot_id, 1, self._tokens], np.uint32).view(np.uint8))
        transposed, layers = _words(piece, place, 2)
        if transposed or not layers:
            raise UnknownFormat("transposed values")
        self._put(target, piece[place : place + 2 * _WORD_BYTES])
        place, target = place + 2 * _WORD_BYTES, target + 2 * _WORD_BYTES
        for _ in range(2 * int(layers)):
            place, target = self._move_rows(piece, tokens, place, target)
        if place != piece.size or target != self._whole.size:
            raise UnknownFormat("size")
        self._joined += tokens

    def _move_rows(self, piece: Bytes, tokens: int, place: int, target: int) -> tuple[int, int]:
        head = piece[place : place + _ROW_HEAD_BYTES]
        if head.size != _ROW_HEAD_BYTES:
            raise UnknownFormat("end within a layer")
        row_bytes = int.from_bytes(head[_WORD_BYTES:].tobytes(), "little")
        place += _ROW_HEAD_BYTES
        rows = piece[place : place + tokens * row_bytes]
        if not row_bytes or rows.size != tokens * row_bytes:
            raise UnknownFormat("end within a layer")
        self._put(target, head)
        target += _ROW_HEAD_BYTES
        self._put(target + self._joined * row_bytes, rows)
        return place + rows.size, target + self._tokens * row_bytes

    def _put(self, start: int, data: Bytes) -> None:
        if start + data.size > self._whole.size:
            raise UnknownFormat("size")
        self._whole[start : start + data.size] = data


def _words(data: Bytes, start: int, count: int) -> NDArray[np.uint32]:
    words = data[start : start + count * _WORD_BYTES]
    if words.size != count * _WORD_BYTES:
        raise UnknownFormat("end within a header")
    return words.view(np.uint32) if start % _WORD_BYTES == 0 else words.copy().view(np.uint32)
