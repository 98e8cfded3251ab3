"""Damaged copies of model files, for everything that has to refuse them."""

import struct
from enum import Enum
from pathlib import Path

import gguf


class Damage(Enum):
    """Damage to the copy."""

    EMPTY = "empty"
    TEXT = "text"
    BAD_MAGIC = "bad-magic"
    BAD_VERSION = "bad-version"
    HUGE_TENSOR_COUNT = "huge-tensor-count"
    HUGE_ENTRY_COUNT = "huge-entry-count"
    HUGE_STRING = "huge-string"
    CUT_IN_HEADER = "cut-in-header"
    CUT_BEFORE_DATA = "cut-before-data"
    CUT_IN_DATA = "cut-in-data"
    UNKNOWN_ARCHITECTURE = "unknown-architecture"
    TENSOR_BEYOND_END = "tensor-beyond-end"


# Layout of a GGUF header: magic (4 bytes), version (u32), tensors (u64), entries (u64), then the first entry, which
# begins with the length of its key (u64).
# What a damaged header says instead, and where.
HUGE = struct.pack("<Q", 2**62)
PATCHES = {
    Damage.BAD_MAGIC: (0, b"GGML"),
    Damage.BAD_VERSION: (4, struct.pack("<I", 99)),
    Damage.HUGE_TENSOR_COUNT: (8, HUGE),
    Damage.HUGE_ENTRY_COUNT: (16, HUGE),
    Damage.HUGE_STRING: (24, HUGE),
}


def damage(path: Path, kind: Damage | str) -> Path:
    """Write a damaged copy next to the file and return its path; the file itself stays as it is."""
    kind = Damage(kind)
    copy = path.with_name(f"{path.stem}.{kind.value}{path.suffix}")
    copy.write_bytes(_damaged(path, kind))
    return copy


def _damaged(path: Path, kind: Damage) -> bytes:
    data = path.read_bytes()
    if kind in PATCHES:
        return _patched(data, *PATCHES[kind])
    match kind:
        case Damage.EMPTY:
            return b""
        case Damage.TEXT:
            return b"<!DOCTYPE html>\n<title>404 Not Found</title>\n" * 64
        case Damage.CUT_IN_HEADER:
            return data[: _data_offset(path) // 2]
        case Damage.CUT_BEFORE_DATA:
            return data[: _data_offset(path)]
        case Damage.CUT_IN_DATA:
            return data[: (_data_offset(path) + len(data)) // 2]
        case Damage.UNKNOWN_ARCHITECTURE:
            return _with_unknown_architecture(path, data)
        case _:
            return _with_tensor_beyond_end(path, data)


def _patched(data: bytes, offset: int, replacement: bytes) -> bytes:
    return data[:offset] + replacement + data[offset + len(replacement) :]


def _data_offset(path: Path) -> int:
    return int(gguf.GGUFReader(path).data_offset)


def _with_unknown_architecture(path: Path, data: bytes) -> bytes:
    field = gguf.GGUFReader(path).fields["general.architecture"]
    name = bytes(field.parts[field.data[0]])
    return data.replace(name, b"x" * len(name), 1)


def _with_tensor_beyond_end(path: Path, data: bytes) -> bytes:
    """Point the last tensor far behind the end of the file; its offset is the last part of its table entry."""
    tensor = gguf.GGUFReader(path).tensors[-1]
    offset_part = tensor.field.parts[-1]
    entry_end = int(tensor.field.offset) + sum(int(part.nbytes) for part in tensor.field.parts)
    far = struct.pack("<Q", int(offset_part[0]) + 2**40)
    return _patched(data, entry_end - len(far), far)
