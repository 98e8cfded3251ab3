"""Files that llama.cpp should never see."""

import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.model.gguf_check import BadGguf, BlockFormat, check_gguf, header_length, read_texts

FORMATS = {0: BlockFormat(elements=1, size_bytes=4), 8: BlockFormat(elements=32, size_bytes=34)}
UINT32, STRING, ARRAY = 4, 8, 9


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: bytes, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@dataclass
class File:
    """A GGUF in parts, so that each can be spoilt."""

    magic: bytes = b"GGUF"
    version: int = 3
    keys: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    key_count: int | None = None
    tensor_count: int | None = None
    data: bytes = b""

    def content(self) -> bytes:
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        key_count = len(self.keys) if self.key_count is None else self.key_count
        start = self.magic + struct.pack("<IQQ", self.version, tensor_count, key_count)
        header = start + b"".join(self.keys) + b"".join(self.tensors)
        return header + bytes(-len(header) % 32) + self.data


def check(file: File | bytes) -> None:
    check_gguf(memoryview(file if isinstance(file, bytes) else file.content()), FORMATS)


def whole_file() -> File:
    return File(
        keys=[
            key(b"general.name", STRING, text(b"x")),
            key(b"list", ARRAY, struct.pack("<IQ", STRING, 2) + text(b"a") + text(b"bc")),
            key(b"general.alignment", UINT32, struct.pack("<I", 32)),
        ],
        tensors=[tensor(b"a", [8, 4]), tensor(b"b", [32], kind=8, offset=128)],
        data=bytes(128 + 34),
    )


def complaint(file: File | bytes) -> BadGguf:
    with pytest.raises(BadGguf) as caught:
        check(file)
    return caught.value


def verdict(content: bytes) -> BadGguf | None:
    try:
        check(content)
    except BadGguf as error:
        return error
    return None


def test_a_whole_file_passes() -> None:
    check(whole_file())


@pytest.mark.behaviour("B-83")
@given(written=st.lists(st.binary(max_size=9), max_size=9))
def test_the_texts_of_an_array_are_read_as_the_engine_reads_them(written: list[bytes]) -> None:
    array = struct.pack("<IQ", STRING, len(written)) + b"".join(map(text, written))
    content = File(keys=[key(b"x", UINT32, bytes(4)), key(b"list", ARRAY, array)]).content()
    place = check_gguf(memoryview(content), FORMATS).places[b"list"]
    assert list(read_texts(content, place)) == [one.split(b"\0")[0] for one in written]  # they end at a NUL


def test_every_shorter_prefix_of_a_file_is_called_truncated() -> None:
    content = whole_file().content()
    for length in range(4, len(content)):
        error = complaint(content[:length])
        assert "truncated" in error.message
        assert error.offset == length


@pytest.mark.behaviour("B-83")
def test_a_tensor_beyond_the_end_is_named_with_its_last_byte() -> None:
    content = whole_file().content()
    assert f"tensor 'b' ends at byte {len(content)}" in complaint(content[:-1]).message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"magic": b"GGML"}, "not a GGUF file"),
        ({"version": 1}, "version 1"),
        ({"version": 3 << 24}, "big-endian"),
        ({"tensor_count": 2**63}, "tensors, at most"),
        ({"key_count": 2**40}, "keys, at most"),
        ({"key_count": 60_000}, ""),
        ({"keys": [struct.pack("<Q", 2**60)]}, "key name of"),
        ({"keys": [key(b"k", 13, b"")]}, "unknown type 13"),
        ({"keys": [key(b"k", STRING, struct.pack("<Q", 2**40))]}, "string of"),
        ({"keys": [key(b"k", ARRAY, struct.pack("<IQ", UINT32, 2**62))]}, "array of"),
        ({"keys": [key(b"k", ARRAY, struct.pack("<IQ", ARRAY, 1))]}, "nested"),
        ({"keys": [key(b"k", ARRAY, struct.pack("<IQQ", STRING, 1, 2**50))]}, "string of"),
        ({"keys": [key(b"general.alignment", UINT32, struct.pack("<I", 0))]}, "power of two"),
        ({"keys": [key(b"general.alignment", UINT32, struct.pack("<I", 33))]}, "power of two"),
        ({"tensors": [tensor(b"n" * 64, [1])]}, "tensor name of"),
        ({"tensors": [tensor(b"a", [1] * 5)]}, "5 dimensions"),
        ({"tensors": [tensor(b"a", [2**40, 2**40])]}, "impossible shape"),
        ({"tensors": [tensor(b"a", [0])]}, "impossible shape"),
        ({"tensors": [tensor(b"a", [1], kind=4)]}, "unknown type 4"),
        ({"tensors": [tensor(b"a", [33], kind=8)]}, "no multiple of 32"),
        ({"tensors": [tensor(b"a", [1], offset=7)], "data": bytes(64)}, "7 bytes behind the header, not 0"),
    ],
)
def test_hostile_headers_are_refused(change: dict[str, object], words: str) -> None:
    file = File(**change)  # type: ignore[arg-type]
    assert words in complaint(file).message


@given(st.binary(max_size=400))
def test_noise_after_the_magic_is_refused_without_a_crash(noise: bytes) -> None:
    error = verdict(b"GGUF" + noise)
    assert error is None or 0 <= error.offset <= len(noise) + 4


@settings(max_examples=300)
@given(st.data())
def test_a_flipped_byte_is_refused_or_harmless(data: st.DataObject) -> None:
    content = bytearray(whole_file().content())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    error = verdict(bytes(content))
    assert error is None or 0 <= error.offset <= len(content)


def test_a_header_has_a_length_once_all_of_it_is_here() -> None:
    content = whole_file().content()
    last_row = tensor(b"b", [32], kind=8, offset=128)
    end = content.index(last_row) + len(last_row)
    assert [header_length(content[:size]) for size in range(len(content))] == [
        None if size < end else end for size in range(len(content))
    ]
    with pytest.raises(BadGguf, match="not a GGUF file"):
        header_length(b"GIF89a")
