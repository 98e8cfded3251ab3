"""Format of a saved state: what the engine wrote, then what it stands for. Pure.

engine's bytes (whole state, then each checkpoint) | inputs | description (JSON) | its length (8 bytes) | magic
"""

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAGIC = b"PUNASTA1"
_LENGTH_BYTES = 8
_ITEM_CODE = "i"
_TOKEN_BYTES = array(_ITEM_CODE).itemsize
_ROW_MARK = -1  # in the place of a row of an image, whose value is in the description
_FIELDS_MAX = 64 * 1024 * 1024  # bytes of a description


class DamagedState(Exception):
    """The bytes are no saved state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateIndex:
    """Places within the engine's bytes, and the inputs that they stand for. Ranges are half-open [start, stop)."""

    inputs: list[int]
    state: tuple[int, int]
    checkpoints: Mapping[int, tuple[int, int]]  # by the number of inputs after which each was taken
    first_position: int  # the oldest one that the state holds; > 0 only with a sliding window

    @property
    def payload_bytes(self) -> int:
        """Return the end of the engine's bytes."""
        return max(stop for _, stop in (self.state, *self.checkpoints.values()))


def trailer(index: StateIndex) -> bytes:
    """Return what follows the engine's bytes."""
    rows = {str(place): str(value) for place, value in enumerate(index.inputs) if value < 0}
    tokens = array(_ITEM_CODE, [value if value >= 0 else _ROW_MARK for value in index.inputs]).tobytes()
    fields = {
        "inputs": len(index.inputs),
        "rows": rows,
        "state": list(index.state),
        "checkpoints": {str(place): list(span) for place, span in index.checkpoints.items()},
        "first_position": index.first_position,
    }
    text = json.dumps(fields, separators=(",", ":")).encode()
    return tokens + text + len(text).to_bytes(_LENGTH_BYTES, "big") + MAGIC


def read_index(data: memoryview) -> StateIndex:
    """Read what a saved state stands for.

    Raises:
        DamagedState: the bytes contradict themselves.
    """
    end = len(data) - len(MAGIC)
    if end < _LENGTH_BYTES or data[end:] != MAGIC:
        raise DamagedState("no magic at the end")
    length = int.from_bytes(data[end - _LENGTH_BYTES : end], "big")
    text_start = end - _LENGTH_BYTES - length
    if length > _FIELDS_MAX or text_start < 0:
        raise DamagedState("a description longer than the file")
    try:
        index = _parse(json.loads(bytes(data[text_start : end - _LENGTH_BYTES])), data[:text_start])
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedState(f"unreadable description: {type(error).__name__}") from error
    return index


def _parse(fields: Mapping[str, object], before: memoryview) -> StateIndex:
    count = _natural(fields["inputs"])
    start = len(before) - count * _TOKEN_BYTES
    if count == 0 or start < 0:
        raise ValueError("inputs")
    tokens = array(_ITEM_CODE)
    tokens.frombytes(before[start:])
    inputs = tokens.tolist()
    rows = _mapping(fields["rows"])
    for place, value in rows.items():
        if not isinstance(value, str) or int(value) >= 0 or inputs[int(place)] != _ROW_MARK:
            raise ValueError("rows")
        inputs[int(place)] = int(value)
    if sum(value == _ROW_MARK for value in tokens) != len(rows):
        raise ValueError("rows")
    checkpoints = {int(place): _span(span, start) for place, span in _mapping(fields["checkpoints"]).items()}
    if any(not 0 < place <= count for place in checkpoints):
        raise ValueError("checkpoints")
    return StateIndex(
        inputs=inputs,
        state=_span(fields["state"], start),
        checkpoints=checkpoints,
        first_position=_natural(fields["first_position"]),
    )


def _natural(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("a number")
    return value


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError("a mapping")
    return value


def _span(value: object, end: int) -> tuple[int, int]:
    if not isinstance(value, Sequence) or len(value) != 2:
        raise ValueError("a span")
    start, stop = _natural(value[0]), _natural(value[1])
    if not start < stop <= end:
        raise ValueError("a span")
    return start, stop
