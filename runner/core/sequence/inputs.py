"""Inputs of a sequence: token ids, and units of media. Pure.

A prompt stays one list of integers. A token is its id. The rows of an image are negative numbers, one for each row,
that say everything about it: whose content it is, how many rows belong together and what they take. Thus two lists are
compared with `==`, a slice of a list needs no second table, and equal images are equal inputs.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from runner.core.sequence.truncation import Group

_FIELD_BITS = 24
_FIELD_MAX = (1 << _FIELD_BITS) - 1
_KEY_BYTES = 16  # of the hash: a second image with the same inputs cannot be found


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaUnit:
    """Rows of one picture that are evaluated one behind the other and never parted.

    Attributes:
        key: names the content, see `unit_key`.
        rows: embedding rows, each of which takes a cell.
        positions: positions that they take; fewer than rows where positions have several components.
        lead: inputs of the same image before this unit, its begin marker among them.
        trail: inputs of the same image behind it.
        whole: every row has to be in the same decode call, because each sees all others.
    """

    key: int
    rows: int
    positions: int
    lead: int = 0
    trail: int = 0
    whole: bool = False

    def inputs(self) -> list[int]:
        """One input for each row."""
        assert max(self.rows, self.positions, self.lead, self.trail) <= _FIELD_MAX, "larger than any context"
        assert self.rows > 0, "an image without rows"
        packed = self.key
        for field in (self.rows, self.positions, self.lead, self.trail):
            packed = packed << _FIELD_BITS | field
        packed = (packed << 1 | self.whole) << _FIELD_BITS
        return [-(packed | row) - 1 for row in range(self.rows)]


@dataclass(frozen=True, slots=True)
class UnitRow:
    """A row as it stands in a list: which one of which unit."""

    unit: MediaUnit
    row: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The first inputs of a list that one decode call can hold: tokens, or rows of one unit."""

    inputs: int
    row: UnitRow | None  # the first row; None: tokens


def unit_key(content_hash: bytes, part: int) -> int:
    """Names a part of an image by its content. Large images are cut into several parts."""
    assert len(content_hash) == hashlib.sha256().digest_size, "a SHA-256"
    digest = hashlib.sha256(content_hash + part.to_bytes(4, "big")).digest()
    return int.from_bytes(digest[:_KEY_BYTES], "big")


def join_pieces(pieces: Sequence[list[int] | MediaUnit]) -> tuple[tuple[MediaUnit, ...], tuple[int, ...]]:
    """Join the pieces of one image: its units, each with its neighbours, and the inputs of the whole.

    Args:
        pieces: markers as token ids, and units, in order.
    """
    lengths = [piece.rows if isinstance(piece, MediaUnit) else len(piece) for piece in pieces]
    units: list[MediaUnit] = []
    inputs: list[int] = []
    for index, piece in enumerate(pieces):
        if isinstance(piece, MediaUnit):
            piece = replace(piece, lead=sum(lengths[:index]), trail=sum(lengths[index + 1 :]))  # noqa: PLW2901
            units.append(piece)
        inputs += piece.inputs() if isinstance(piece, MediaUnit) else piece
    return tuple(units), tuple(inputs)


def read_row(value: int) -> UnitRow:
    """Return the row that a negative input stands for."""
    assert value < 0, "a token"
    packed = -value - 1
    row, packed = packed & _FIELD_MAX, packed >> _FIELD_BITS
    whole, packed = bool(packed & 1), packed >> 1
    fields = []
    for _ in range(4):
        fields.append(packed & _FIELD_MAX)
        packed >>= _FIELD_BITS
    trail, lead, positions, rows = fields
    unit = MediaUnit(key=packed, rows=rows, positions=positions, lead=lead, trail=trail, whole=whole)
    return UnitRow(unit, row)


def holds_media(inputs: Sequence[int]) -> bool:
    """Return True if any input is a row of an image."""
    return bool(inputs) and min(inputs) < 0


def tokens_of(inputs: Sequence[int]) -> list[int]:
    """Only the token ids."""
    return [value for value in inputs if value >= 0]


def units_in(inputs: Sequence[int]) -> Iterator[tuple[int, MediaUnit]]:
    """Each unit with the index where it begins; the last one may be there in part."""
    index = 0
    while index < len(inputs):
        if inputs[index] >= 0:
            index += 1
            continue
        found = read_row(inputs[index])
        yield index - found.row, found.unit
        index += found.unit.rows - found.row


def groups_in(inputs: Sequence[int]) -> tuple[Group, ...]:
    """Return the images, with their markers, that no cut may split."""
    if not holds_media(inputs):
        return ()
    groups: list[Group] = []
    for start, unit in units_in(inputs):
        group = Group(max(0, start - unit.lead), min(len(inputs), start + unit.rows + unit.trail))
        if not groups or groups[-1] != group:  # parts of one image span the same inputs
            groups.append(group)
    return tuple(groups)


def whole_units(inputs: Sequence[int], count: int) -> int:
    """Return the most inputs from the start, at most `count`, that part no unit."""
    if count < len(inputs) and inputs[count] < 0:
        return count - read_row(inputs[count]).row
    return count


def leading_segment(inputs: Sequence[int]) -> Segment:
    """Return the next segment of pending inputs that can be computed."""
    if inputs[0] < 0:
        found = read_row(inputs[0])
        return Segment(min(found.unit.rows - found.row, len(inputs)), found)
    return Segment(next((index for index, value in enumerate(inputs) if value < 0), len(inputs)), None)


def excess_rows(inputs: Sequence[int]) -> int:
    """By how many the inputs outnumber the positions that they take; a unit that is there in part takes none yet."""
    if not holds_media(inputs):
        return 0
    excess = 0
    for start, unit in units_in(inputs):
        held = min(unit.rows, len(inputs) - start)
        excess += held - (unit.positions if held == unit.rows else 0)
    return excess
