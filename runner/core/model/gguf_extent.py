"""Length of the header of a GGUF file, from its first bytes. Pure.

A node that only counts bytes needs no more of a file that lies elsewhere. What the header says is for `gguf_check`.
"""

import struct

from runner.core.model.gguf_check import DIMENSIONS_MAX, KEYS_MAX, MAGIC, TENSORS_MAX, BadGguf

_STRING, _ARRAY = 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class _MoreNeededError(Exception):
    """The header goes on after the bytes that are here."""


def header_length(data: bytes) -> int | None:
    """Bytes up to the end of the table of tensors; None: more bytes are needed to tell.

    Raises:
        BadGguf: these are not the first bytes of a GGUF file.
    """
    if len(data) >= len(MAGIC) and not data.startswith(MAGIC):
        raise BadGguf(f"not a GGUF file: it begins with {data[:4]!r}", 0)
    try:
        tensor_count, key_count = _u64(data, 8), _u64(data, 16)
        if tensor_count > TENSORS_MAX or key_count > KEYS_MAX:
            raise BadGguf(f"{key_count} keys and {tensor_count} tensors are too many", 8)
        offset = 24
        for _ in range(key_count):
            offset = _after_value(data, _after_string(data, offset))
        for _ in range(tensor_count):
            offset = _after_tensor(data, offset)
    except _MoreNeededError:
        return None
    return offset if offset <= len(data) else None


def _after_value(data: bytes, offset: int) -> int:
    kind = _u32(data, offset)
    offset += 4
    if kind in _SCALAR_BYTES:
        return offset + _SCALAR_BYTES[kind]
    if kind == _STRING:
        return _after_string(data, offset)
    if kind != _ARRAY:
        raise BadGguf(f"a key has the unknown type {kind}", offset - 4)
    kind, count = _u32(data, offset), _u64(data, offset + 4)
    offset += 12
    if kind in _SCALAR_BYTES:
        return offset + count * _SCALAR_BYTES[kind]
    if kind != _STRING:
        raise BadGguf(f"an array has the unknown or nested type {kind}", offset - 12)
    for _ in range(count):
        offset = _after_string(data, offset)
    return offset


def _after_tensor(data: bytes, offset: int) -> int:
    offset = _after_string(data, offset)
    dimensions = _u32(data, offset)
    if dimensions > DIMENSIONS_MAX:
        raise BadGguf(f"a tensor has {dimensions} dimensions", offset)
    return offset + 4 + 8 * dimensions + 4 + 8


def _after_string(data: bytes, offset: int) -> int:
    return offset + 8 + _u64(data, offset)


def _u32(data: bytes, offset: int) -> int:
    if offset + 4 > len(data):
        raise _MoreNeededError
    return int(_U32.unpack_from(data, offset)[0])


def _u64(data: bytes, offset: int) -> int:
    if offset + 8 > len(data):
        raise _MoreNeededError
    return int(_U64.unpack_from(data, offset)[0])
