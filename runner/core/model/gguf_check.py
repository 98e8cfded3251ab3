"""Checks the structure of a GGUF file before llama.cpp sees it. Pure: bytes in, verdict out.

llama.cpp aborts the process on some malformed files and says little about truncated ones. Counts are bounded here, so
that a hostile file costs neither memory nor more than a few seconds, and every complaint names the byte it is about.
Source: the GGUF specification, versions 2 and 3, little-endian.
"""

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from typing import NamedTuple

from runner.core.model.description import Scalar

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Far above every real model, far below what could exhaust the machine.
KEYS_MAX = 30_000
TENSORS_MAX = 30_000
HEADER_BYTES_MAX = 64 * 1024 * 1024
NAME_BYTES_MAX = 65_535
TENSOR_NAME_BYTES_MAX = 63  # GGML_MAX_NAME is 64 with the final NUL
STRING_BYTES_MAX = 10_000_000
TEMPLATE_BYTES_MAX = 256 * 1024
TRUNCATED = "truncated, or still being written"
ARRAY_ELEMENTS_MAX = 4_000_000  # arrays of arrays are refused as a whole: the engine's own reader does not know them
# A header is checked, read by the engine and described in 2 s of CPU time, whatever its counts are. The unit is about a
# microsecond of a slow machine. The largest real headers need 1.4 million: 262,144 tokens and 515,000 merges, which are
# strings of an array, a thousand tensors and a hundred keys.
WORK_MAX = 1_800_000
KEY_WORK = 30
TENSOR_WORK = 30
TOKEN_WORK = 3  # beside that of its string: its text and type are looked at
NUMBERS_PER_WORK = 6  # of an array
BYTES_PER_WORK = 32  # of a text
DIMENSIONS_MAX = 4
ELEMENTS_MAX = 2**48
ALIGNMENT_DEFAULT = 32
ALIGNMENT_MAX = 2**20
ALIGNMENT_KEY = b"general.alignment"
TEMPLATE_KEY = b"tokenizer.chat_template"  # and those that begin with it and a dot
BLOCKS_MAX = 512  # of any model that the engine loads
_INT32_MAX = 2**31 - 1
_HEADS_MAX = 2**16
# Least and largest value of the counts that the engine divides by or allocates from, by the ending of the key; the
# architecture is in front. Each is a whole number, or an array of them with one for each block.
COUNTS = {
    b".context_length": (0, _INT32_MAX),
    b".block_count": (1, BLOCKS_MAX),
    b".embedding_length": (1, 2**20),
    b".feed_forward_length": (0, 2**24),
    b".attention.head_count": (0, _HEADS_MAX),  # 0: see `_check_numbers`
    b".attention.head_count_kv": (0, _HEADS_MAX),
    b".attention.key_length": (1, _HEADS_MAX),
    b".attention.value_length": (1, _HEADS_MAX),
    b".rope.dimension_count": (0, _HEADS_MAX),
    b".expert_count": (0, _HEADS_MAX),
    b".expert_used_count": (0, _HEADS_MAX),
    b".vocab_size": (0, 2**24),
}
ENDINGS = tuple(COUNTS)
RECURRENT_PREFIXES = (b".ssm.", b".wkv.")  # of the keys of models that may have no attention
ARCHITECTURE_KEY = b"general.architecture"
TOKENS_KEY = b"tokenizer.ggml.tokens"

_PRINTABLE = re.compile(rb"[\x20-\x7e]+")
UINT32, INT32, STRING, _ARRAY = 4, 5, 8, 9
_TYPES = {6: "a float", 7: "a truth value", STRING: "a text", 12: "a float"}
_INTEGERS = {0: "B", 1: "b", 2: "H", 3: "h", UINT32: "I", INT32: "i", 10: "Q", 11: "q"}
_SCALARS = {**_INTEGERS, 6: "f", 7: "?", 12: "d"}
_SCALAR_BYTES = {kind: struct.calcsize(f"<{code}") for kind, code in _SCALARS.items()}

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class BadGguf(Exception):
    """The file is no usable GGUF. `offset` is the byte that the complaint is about."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


class TruncatedGguf(BadGguf):
    """The file ends inside its header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """A tensor type: so many elements are stored together in so many bytes."""

    elements: int
    size_bytes: int


class ValuePlace(NamedTuple):
    """Place of a key's value, or of the items of an array."""

    kind: int
    is_array: bool
    items: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """A row of the tensor table."""

    name: str
    kind: int
    shape: Sequence[int]
    row_offset: int  # in the file
    data_offset: int  # behind the header
    size_bytes: int


class CheckedGguf(NamedTuple):
    """Contents of a header."""

    places: Mapping[bytes, ValuePlace]
    tensors: Sequence[TensorEntry]


def check_gguf(data: memoryview, formats: Mapping[int, BlockFormat]) -> CheckedGguf:
    """Walk through header, keys and tensor table, and compare the table with the file's size.

    `formats` holds the tensor types that the engine knows, by their number.

    Raises:
        BadGguf: what is wrong, and where.
    """
    cursor = _Cursor(data)
    tensor_count, keys = _read_keys(cursor)
    _check_numbers(keys)
    tensors = [_read_tensor(cursor, formats) for _ in range(tensor_count)]
    _check_names(tensors)
    data_start = -(-cursor.offset // keys.alignment) * keys.alignment
    _check_places(tensors, data_start, keys.alignment, len(data))
    return CheckedGguf(keys.places, tensors)


def read_texts(content: bytes | mmap, place: ValuePlace) -> Iterator[bytes]:
    """Yield the texts at a place of a checked file, each up to its first NUL, as the engine reads it."""
    unpack, offset = _U64.unpack_from, place.offset
    for _ in range(place.items):
        start = offset + _U64.size
        offset = start + unpack(content, offset)[0]
        text = content[start:offset]
        yield text[: text.index(0)] if 0 in text else text


def read_numbers(content: bytes | mmap, place: ValuePlace) -> tuple[Scalar, ...]:
    """Return the numbers at a place of a checked file."""
    return struct.unpack_from(f"<{place.items}{_SCALARS[place.kind]}", content, place.offset)


def header_length(data: bytes) -> int | None:
    """Return the bytes up to the end of the table of tensors; None: more bytes are needed to tell.

    A node that only counts bytes needs no more of a file that lies elsewhere.

    Raises:
        BadGguf: these are not the first bytes of a GGUF file.
    """
    cursor = _Cursor(memoryview(data))
    try:
        tensor_count, _ = _read_keys(cursor)
        for _ in range(tensor_count):
            _read_row(cursor)
    except TruncatedGguf:
        return None
    return cursor.offset


def _check_numbers(keys: "_Keys") -> None:
    """Heads that there are, and that divide; what a header does not say is left to the engine.

    The engine divides by these numbers before it looks at them twice.
    """

    def of(ending: bytes) -> tuple[Sequence[int], int]:
        return keys.numbers.get(keys.architecture + ending, ((), 0))

    (heads, heads_offset), (shared, shared_offset) = of(b".attention.head_count"), of(b".attention.head_count_kv")
    for each, fewer in _pairs(heads, shared):
        # A block without attention has no heads; one whose heads are many has a divisor of them for keys and values.
        if fewer > 0 and each % fewer:
            raise BadGguf(f"{each} heads cannot share {fewer} heads of keys and values", shared_offset)
    recurrent = tuple(keys.architecture + prefix for prefix in RECURRENT_PREFIXES)
    if heads and not any(heads) and not any(name.startswith(recurrent) for name in keys.places):
        raise BadGguf(f"{keys.architecture.decode()}.attention.head_count is 0: no heads in any block", heads_offset)
    if not of(b".attention.key_length")[0]:
        for each, width in _pairs(heads, of(b".embedding_length")[0]):
            if each > 0 and width % each:
                raise BadGguf(f"a width of {width} cannot be divided among {each} heads", heads_offset)


def _pairs(one: Sequence[int], other: Sequence[int]) -> list[tuple[int, int]]:
    """Block by block; a single number holds for every block."""
    if len(one) == 1:
        return [(one[0], item) for item in other]
    if len(other) == 1:
        return [(item, other[0]) for item in one]
    return list(zip(one, other, strict=False))


def _check_names(tensors: list[TensorEntry]) -> None:
    """Check that no name is there twice: readers would take different ones of the two."""
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise BadGguf(f"tensor {tensor.name!r} is there twice", tensor.row_offset)
        seen.add(tensor.name)


def _check_places(tensors: list[TensorEntry], data_start: int, alignment: int, file_bytes: int) -> None:
    """Each tensor lies behind the one before, as the engine demands, and none beyond the end of the file."""
    expected = 0
    for tensor in tensors:
        end = data_start + tensor.data_offset + tensor.size_bytes
        if end > file_bytes:
            raise BadGguf(
                f"{TRUNCATED}: tensor {tensor.name!r} ends at byte {end}, the file has only {file_bytes} bytes",
                file_bytes,
            )
        if tensor.data_offset != expected:
            text = f"tensor {tensor.name!r} begins {tensor.data_offset} bytes behind the header, not {expected}"
            raise BadGguf(text, tensor.row_offset)
        expected += -(-tensor.size_bytes // alignment) * alignment


@dataclass(slots=True)
class _Keys:
    """Keys that the checks use. Numbers are stored with their byte offset."""

    alignment: int = ALIGNMENT_DEFAULT
    architecture: bytes = b""
    numbers: dict[bytes, tuple[Sequence[int], int]] = field(default_factory=dict)
    places: dict[bytes, ValuePlace] = field(default_factory=dict)


class _Cursor:
    """Reads forward through the file; running over its end is a complaint, never an exception of Python."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.offset = 0
        self._work_left = WORK_MAX

    def work(self, amount: int) -> None:
        """Count what is read next against the limit of a header."""
        self._work_left -= amount
        if self._work_left < 0:
            raise BadGguf(f"too many keys, tensors, texts and items of arrays (work over {WORK_MAX})", self.offset)

    def take(self, count: int) -> memoryview:
        """Read the next `count` bytes."""
        end = self.offset + count
        if end > len(self._data):
            raise TruncatedGguf(
                f"{TRUNCATED}: the header goes on after the file's {len(self._data)} bytes", len(self._data)
            )
        if end > HEADER_BYTES_MAX:
            raise BadGguf(f"a header of more than {HEADER_BYTES_MAX} bytes", self.offset)
        part = self._data[self.offset : end]
        self.offset = end
        return part

    def u32(self) -> int:
        """Read the next four bytes as a number."""
        (value,) = _U32.unpack(self.take(4))
        return int(value)

    def u64(self) -> int:
        """Read the next eight bytes as a number."""
        (value,) = _U64.unpack(self.take(8))
        return int(value)

    def string(self, length_max: int, what: str) -> bytes:
        """Read a length and as many bytes."""
        start = self.offset
        length = self.u64()
        if length > length_max:
            raise BadGguf(f"{what} of {length} bytes, at most {length_max} are allowed", start)
        self.work(length // BYTES_PER_WORK)
        return bytes(self.take(length))

    def skip_strings(self, count: int) -> None:
        """`count` strings; a tight loop, because vocabularies have hundreds of thousands."""
        self.work(count)
        data, offset, end = self._data, self.offset, min(len(self._data), HEADER_BYTES_MAX)
        unpack = _U64.unpack_from
        for _ in range(count):
            if offset + 8 > end:
                break
            (length,) = unpack(data, offset)
            if length > STRING_BYTES_MAX:
                raise BadGguf(f"string of {length} bytes, at most {STRING_BYTES_MAX} are allowed", offset)
            offset += 8 + length
        else:
            if offset <= end:
                self.offset = offset
                return
        if end < len(data):
            raise BadGguf(f"a header of more than {HEADER_BYTES_MAX} bytes", end)
        raise TruncatedGguf(f"{TRUNCATED}: the header goes on after the file's {end} bytes", end)


def _read_keys(cursor: _Cursor) -> tuple[int, _Keys]:
    """Magic, version and counts, then the keys; return the number of tensors and what matters of the keys."""
    magic = bytes(cursor.take(4))
    if magic != MAGIC:
        raise BadGguf(f"not a GGUF file: it begins with {magic!r}", 0)
    version = cursor.u32()
    if version & 0xFFFF == 0:
        raise BadGguf("big-endian GGUF files are not supported", 4)
    if version not in VERSIONS:
        raise BadGguf(f"GGUF version {version} is not supported", 4)
    tensor_count, key_count = cursor.u64(), cursor.u64()
    if tensor_count > TENSORS_MAX:
        raise BadGguf(f"{tensor_count} tensors, at most {TENSORS_MAX} are allowed", 8)
    if key_count > KEYS_MAX:
        raise BadGguf(f"{key_count} keys, at most {KEYS_MAX} are allowed", 16)
    keys = _Keys()
    for _ in range(key_count):
        _read_key(cursor, keys)
    return tensor_count, keys


def _read_key(cursor: _Cursor, keys: _Keys) -> None:
    """Skip one key and its value, or keep it where it matters."""
    at = cursor.offset
    cursor.work(KEY_WORK)
    name = cursor.string(NAME_BYTES_MAX, "key name")
    if not _PRINTABLE.fullmatch(name):
        raise BadGguf(f"key {name[:64]!r} is no name of printable ASCII characters", at)
    if name in keys.places:
        raise BadGguf(f"key {name[:64]!r} is there twice", at)
    start, kind, count = cursor.offset, cursor.u32(), 1
    is_array = kind == _ARRAY
    if is_array:
        kind, count = cursor.u32(), cursor.u64()
    keys.places[name] = place = ValuePlace(kind, is_array, count, cursor.offset)
    if name == ALIGNMENT_KEY:
        value = cursor.u32() if kind == UINT32 and not is_array else 0
        if value == 0 or value & (value - 1) or value > ALIGNMENT_MAX:
            raise BadGguf(f"{ALIGNMENT_KEY.decode()} must be a power of two in 32 bits, at most {ALIGNMENT_MAX}", start)
        keys.alignment = value
    elif name.endswith(ENDINGS):
        keys.numbers[name] = _read_count(cursor, name, place, start + 4), start
    elif is_array or kind in _SCALAR_BYTES:
        _skip_values(cursor, name, place, start + 4)
    elif kind == STRING:
        is_template = name == TEMPLATE_KEY or name.startswith(TEMPLATE_KEY + b".")
        text = cursor.string(TEMPLATE_BYTES_MAX if is_template else STRING_BYTES_MAX, "string")
        if name == ARCHITECTURE_KEY:
            keys.architecture = text
    else:
        raise BadGguf(f"key {name[:64]!r} has the unknown type {kind}", start)


def _read_count(cursor: _Cursor, name: bytes, place: ValuePlace, start: int) -> Sequence[int]:
    """Read a whole number in its range, or one for each block."""
    what, kind, count = f"key {name[:64]!r}", place.kind, place.items
    if kind not in _INTEGERS:
        raise BadGguf(f"{what} must be a whole number, not {_TYPES.get(kind, f'type {kind}')}", start)
    if count > BLOCKS_MAX:
        raise BadGguf(f"{what} has {count} numbers, at most {BLOCKS_MAX} are allowed", start)
    values = struct.unpack(f"<{count}{_INTEGERS[kind]}", cursor.take(count * _SCALAR_BYTES[kind]))
    low, high = next(limits for ending, limits in COUNTS.items() if name.endswith(ending))
    for value in values:
        if not low <= value <= high:
            raise BadGguf(f"{what} must be from {low} to {high}, not {value}", start)
    return values


def _skip_values(cursor: _Cursor, name: bytes, place: ValuePlace, start: int) -> None:
    if place.items > ARRAY_ELEMENTS_MAX:
        raise BadGguf(f"array of {place.items} elements, at most {ARRAY_ELEMENTS_MAX} are allowed", start)
    if place.kind == STRING:
        cursor.work(place.items * TOKEN_WORK if name == TOKENS_KEY else 0)
        cursor.skip_strings(place.items)
    elif place.kind in _SCALAR_BYTES:
        cursor.work(place.items // NUMBERS_PER_WORK)
        cursor.take(place.items * _SCALAR_BYTES[place.kind])
    else:
        raise BadGguf(f"array of the unknown or nested type {place.kind}", start)


def _read_row(cursor: _Cursor) -> tuple[str, list[int], int, int]:
    """Name, shape, type and place of a tensor."""
    start = cursor.offset
    cursor.work(TENSOR_WORK)
    raw_name = cursor.string(TENSOR_NAME_BYTES_MAX, "tensor name")
    if not _PRINTABLE.fullmatch(raw_name):
        raise BadGguf(f"tensor {raw_name!r} has no name of printable ASCII characters", start)
    name = raw_name.decode()
    dimension_count = cursor.u32()
    if not 0 < dimension_count <= DIMENSIONS_MAX:
        raise BadGguf(f"tensor {name!r} has {dimension_count} dimensions, not 1 to {DIMENSIONS_MAX}", start)
    shape = [cursor.u64() for _ in range(dimension_count)]
    return name, shape, cursor.u32(), cursor.u64()


def _read_tensor(cursor: _Cursor, formats: Mapping[int, BlockFormat]) -> TensorEntry:
    start = cursor.offset
    name, shape, kind, data_offset = _read_row(cursor)
    block = formats.get(kind)
    if block is None:
        raise BadGguf(f"tensor {name!r} has the unknown type {kind}", start)
    element_count = 1
    for length in shape:
        element_count *= length
        if not 0 < length <= ELEMENTS_MAX or element_count > ELEMENTS_MAX:
            raise BadGguf(f"tensor {name!r} has the impossible shape {shape}", start)
    if shape and shape[0] % block.elements:
        raise BadGguf(f"tensor {name!r}: rows of {shape[0]} are no multiple of {block.elements}", start)
    size_bytes = element_count // block.elements * block.size_bytes
    return TensorEntry(
        name=name, kind=kind, shape=shape, row_offset=start, data_offset=data_offset, size_bytes=size_bytes
    )
