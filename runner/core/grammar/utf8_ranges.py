"""Ranges of characters as ranges of UTF-8 bytes. Pure.

Source: the construction of Thompson's and Cox's regular expression engines (one sequence for each shape of encoding).
"""

from collections.abc import Iterable

CODE_POINT_MAX = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
# Last code point of each length in bytes.
_LENGTH_ENDS = (0x7F, 0x7FF, 0xFFFF, CODE_POINT_MAX)

# One range of bytes for each byte of a character.
ByteSequence = tuple[tuple[int, int], ...]


def complement(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Every character that is in none of the ranges."""
    rest: list[tuple[int, int]] = []
    following = 0
    for first, last in sorted([*ranges, _SURROGATES]):
        if first > following:
            rest.append((following, first - 1))
        following = max(following, last + 1)
    if following <= CODE_POINT_MAX:
        rest.append((following, CODE_POINT_MAX))
    return tuple(rest)


def utf8_sequences(ranges: Iterable[tuple[int, int]]) -> list[ByteSequence]:
    """Return the byte sequences of all characters in ranges; surrogates are no characters."""
    sequences: list[ByteSequence] = []
    for first, last in merged(ranges):
        start = first
        for end in _LENGTH_ENDS:
            if start <= min(end, last):
                sequences += _same_length(start, min(end, last))
                start = end + 1
    return sequences


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same characters as sorted ranges that do not touch, without surrogates."""
    return list(complement(complement(ranges)))


def _same_length(first: int, last: int) -> list[ByteSequence]:
    """Characters whose encodings have the same length."""
    low, high = chr(first).encode(), chr(last).encode()
    return _split(low, high)


def _split(low: bytes, high: bytes) -> list[ByteSequence]:
    """All byte strings between two of the same length, whose bytes after the first are continuations."""
    if len(low) == 1:
        return [((low[0], high[0]),)]
    if low[0] == high[0]:
        return [((low[0], low[0]), *rest) for rest in _split(low[1:], high[1:])]
    rest_low, rest_high = bytes([0x80] * (len(low) - 1)), bytes([0xBF] * (len(low) - 1))
    sequences: list[ByteSequence] = []
    middle_low, middle_high = low[0], high[0]
    if low[1:] != rest_low:
        sequences += [((low[0], low[0]), *rest) for rest in _split(low[1:], rest_high)]
        middle_low += 1
    tail: list[ByteSequence] = []
    if high[1:] != rest_high:
        tail = [((high[0], high[0]), *rest) for rest in _split(rest_low, high[1:])]
        middle_high -= 1
    if middle_low <= middle_high:
        sequences += [((middle_low, middle_high), *rest) for rest in _split(rest_low, rest_high)]
    return sequences + tail
