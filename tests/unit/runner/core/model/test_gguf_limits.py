"""Every limit on a GGUF header: what is just allowed passes, one more is refused, and neither takes long."""

import struct
import time
from collections.abc import Callable

import pytest

from runner.core.model import gguf_check
from runner.core.model.gguf_check import BLOCKS_MAX, BadGguf, check_gguf
from tests.unit.runner.core.model.test_gguf_check import (
    ARRAY,
    FORMATS,
    STRING,
    UINT32,
    File,
    complaint,
    key,
    tensor,
    text,
    verdict,
)

UINT8, INT32, FLOAT32 = 0, 5, 6
VERDICT_S_MAX = 2.0


def number(name: bytes, value: int) -> bytes:
    return key(name, UINT32, struct.pack("<I", value))


def numbers(name: bytes, *values: int) -> bytes:
    return key(name, ARRAY, struct.pack(f"<IQ{len(values)}i", INT32, len(values), *values))


def array(kind: int, count: int, content: bytes) -> bytes:
    return key(b"list", ARRAY, struct.pack("<IQ", kind, count) + content)


def model(*keys: bytes) -> File:
    return File(keys=[key(b"general.architecture", STRING, text(b"llama")), *keys])


def many_keys(count: int) -> File:
    return File(keys=[number(b"%d" % index, 1) for index in range(count)])


def many_tensors(count: int) -> File:
    table = [tensor(b"%d" % index, [8], offset=32 * index) for index in range(count)]
    return File(tensors=table, data=bytes(32 * count))


def aligned(alignment: int) -> File:
    return File(keys=[number(b"general.alignment", alignment)])


def named(length: int) -> File:
    return File(tensors=[tensor(b"n" * length, [8])], data=bytes(32))


def dimensions(count: int) -> File:
    return File(tensors=[tensor(b"a", [1] * count)], data=bytes(32))


def template(length: int) -> File:
    return File(keys=[key(b"tokenizer.chat_template", STRING, text(b"t" * length))])


def named_template(length: int) -> File:
    return File(keys=[key(b"tokenizer.chat_template.tool_use", STRING, text(b"t" * length))])


def strings(count: int) -> File:
    half = count // 2
    rest = count - half
    return File(
        keys=[
            key(b"one", ARRAY, struct.pack("<IQ", STRING, half) + bytes(8 * half)),
            key(b"two", ARRAY, struct.pack("<IQ", STRING, rest) + bytes(8 * rest)),
        ]
    )


TOKENS = (gguf_check.WORK_MAX - gguf_check.KEY_WORK) // (gguf_check.TOKEN_WORK + 1)


def tokens(count: int) -> File:
    return File(keys=[key(gguf_check.TOKENS_KEY, ARRAY, struct.pack("<IQ", STRING, count) + bytes(8 * count))])


# What is left of the work after three arrays of 3,000,000 numbers.
NUMBERS_LEFT = (gguf_check.WORK_MAX - 4 * gguf_check.KEY_WORK - 3 * 500_000 + 1) * gguf_check.NUMBERS_PER_WORK - 1


def bytes_in_four_arrays(count: int) -> File:
    sizes = [3_000_000] * 3 + [count - 3_000_000]
    return File(
        keys=[
            key(b"%d" % index, ARRAY, struct.pack("<IQ", UINT8, size) + bytes(size)) for index, size in enumerate(sizes)
        ]
    )


@pytest.mark.behaviour("B-83")
@pytest.mark.parametrize(
    ("limit", "make", "words"),
    [
        (gguf_check.KEYS_MAX, many_keys, "keys, at most"),
        (gguf_check.TENSORS_MAX, many_tensors, "tensors, at most"),
        (gguf_check.STRING_BYTES_MAX, lambda n: File(keys=[key(b"k", STRING, text(bytes(n)))]), "string of"),
        (gguf_check.ARRAY_ELEMENTS_MAX, lambda n: File(keys=[array(UINT8, n, bytes(n))]), "array of"),
        (gguf_check.WORK_MAX, lambda n: strings(n - 2 * gguf_check.KEY_WORK), "items of arrays"),
        (TOKENS, tokens, "items of arrays"),
        (3_000_000 + NUMBERS_LEFT, bytes_in_four_arrays, "items of arrays"),
        (gguf_check.TEMPLATE_BYTES_MAX, template, "string of"),
        (gguf_check.TEMPLATE_BYTES_MAX, named_template, "string of"),
        (gguf_check.NAME_BYTES_MAX, lambda n: File(keys=[number(b"n" * n, 1)]), "key name of"),
        (gguf_check.TENSOR_NAME_BYTES_MAX, named, "tensor name of"),
        (gguf_check.DIMENSIONS_MAX, dimensions, "dimensions, not 1 to 4"),
        (BLOCKS_MAX, lambda n: model(number(b"llama.block_count", n)), "block_count' must be from 1 to 512, not 513"),
    ],
)
def test_a_limit_itself_is_allowed_and_one_more_is_not(limit: int, make: Callable[[int], File], words: str) -> None:
    for count, allowed in ((limit, True), (limit + 1, False)):
        content = make(count).content()
        started = time.process_time()
        found = verdict(content)
        assert time.process_time() - started < VERDICT_S_MAX
        assert (found is None) if allowed else (found is not None and words in found.message)


def test_alignments_are_powers_of_two_up_to_the_largest() -> None:
    assert verdict(aligned(gguf_check.ALIGNMENT_MAX).content()) is None
    for alignment in (gguf_check.ALIGNMENT_MAX + 1, 2 * gguf_check.ALIGNMENT_MAX, 3):
        assert "power of two" in complaint(aligned(alignment)).message


def test_tensors_without_dimensions_are_refused() -> None:
    assert "0 dimensions" in complaint(File(tensors=[tensor(b"a", [])])).message


def test_arrays_longer_than_what_is_left_of_the_file_are_truncated() -> None:
    whole = File(keys=[array(UINT8, 1000, bytes(1000))]).content()
    start = whole.index(b"list") + 4 + 4 + 4 + 8
    assert "truncated" in complaint(whole[: start + 999]).message


def test_a_tensor_may_end_with_the_file_and_no_byte_later() -> None:
    content = File(tensors=[tensor(b"a", [8])], data=bytes(32)).content()
    assert verdict(content) is None
    assert "truncated" in complaint(content[:-1]).message


@pytest.mark.parametrize("second", [0, 32, 36, 96])
def test_tensors_that_share_bytes_or_leave_a_gap_are_refused(second: int) -> None:
    def of(offset: int) -> bytes:
        table = [tensor(b"a", [9]), tensor(b"b", [8], offset=offset)]  # 36 bytes from 0
        return File(tensors=table, data=bytes(128)).content()

    assert verdict(of(64)) is None
    assert f"tensor 'b' begins {second} bytes behind the header, not 64" in complaint(of(second)).message


@pytest.mark.parametrize("kind", [ARRAY, 13, 2**32 - 1])
def test_nested_and_unknown_arrays_are_refused(kind: int) -> None:
    assert "nested" in complaint(File(keys=[array(kind, 1, bytes(12))])).message


def test_keys_that_are_there_twice_are_refused() -> None:
    assert "twice" in complaint(File(keys=[number(b"a", 1), number(b"a", 2)])).message


def test_a_header_of_endless_length_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_check, "HEADER_BYTES_MAX", 1000)
    for keys in (
        [key(b"a", STRING, text(bytes(1000)))],
        [key(b"a", ARRAY, struct.pack("<IQ", STRING, 125) + bytes(1000))],
        [array(FLOAT32, 250, bytes(1000))],
    ):
        assert "a header of more than 1000 bytes" in complaint(File(keys=keys)).message
    assert verdict(File(keys=[key(b"a", STRING, text(bytes(900)))]).content()) is None


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([number(b"llama.attention.head_count", 8), number(b"llama.attention.head_count_kv", 3)], "cannot share 3"),
        ([numbers(b"llama.attention.head_count", 8, 6), number(b"llama.attention.head_count_kv", 4)], "6 heads cannot"),
        ([number(b"llama.attention.head_count", 8), numbers(b"llama.attention.head_count_kv", 4, 0, 5)], "share 5"),
        ([number(b"llama.embedding_length", 65), number(b"llama.attention.head_count", 8)], "divided among 8"),
        ([numbers(b"llama.block_count", 8, BLOCKS_MAX + 1)], "block_count"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(keys: list[bytes], words: str) -> None:
    for order in (keys, keys[::-1]):
        assert words in complaint(model(*order)).message


@pytest.mark.parametrize(
    "keys",
    [
        [number(b"llama.attention.head_count", 8), number(b"llama.attention.head_count_kv", 8)],
        [number(b"llama.attention.head_count", 8), number(b"llama.attention.head_count_kv", 0)],
        [number(b"llama.attention.head_count", 0), number(b"llama.ssm.state_size", 16)],
        [number(b"llama.attention.head_count", 0), number(b"llama.wkv.head_size", 64)],
        [numbers(b"llama.attention.head_count", 0, 8, 0), number(b"llama.embedding_length", 64)],
        [number(b"llama.context_length", 10_485_760)],
        [
            number(b"llama.embedding_length", 65),
            number(b"llama.attention.head_count", 8),
            number(b"llama.attention.key_length", 16),
        ],
        [number(b"other.attention.head_count", 8), number(b"other.attention.head_count_kv", 3)],
        [number(b"llama.block_count", BLOCKS_MAX)],
    ],
)
def test_numbers_of_real_models_pass(keys: list[bytes]) -> None:
    check_gguf(memoryview(model(*keys).content()), FORMATS)


def test_a_complaint_about_numbers_names_their_place() -> None:
    file = model(number(b"llama.attention.head_count", 8), number(b"llama.attention.head_count_kv", 3))
    with pytest.raises(BadGguf) as caught:
        check_gguf(memoryview(file.content()), FORMATS)
    assert file.content()[: caught.value.offset].endswith(b"head_count_kv")


def scalar(name: bytes, kind: int, form: str, value: float) -> bytes:
    return key(name, kind, struct.pack(f"<{form}", value))


@pytest.mark.parametrize("name", [b"", b"a\0b", b"\0", b"a\nb", b"\x7f", "a\u202eb".encode(), b"\xff"])
def test_names_that_cannot_be_printed_are_refused(name: bytes) -> None:
    assert "printable" in complaint(File(keys=[number(name, 1)])).message
    assert "printable" in complaint(File(tensors=[tensor(name, [8])], data=bytes(32))).message


def test_two_tensors_of_one_name_are_refused() -> None:
    table = [tensor(b"a", [8]), tensor(b"b", [8], offset=32), tensor(b"a", [8], offset=64)]
    found = complaint(File(tensors=table, data=bytes(96)))
    assert found.message == "tensor 'a' is there twice"
    assert File(tensors=table).content()[found.offset :].startswith(table[2])


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (number(b"llama.attention.head_count", 0), "head_count is 0"),
        (numbers(b"llama.attention.head_count", 0, 0), "head_count is 0"),
        (scalar(b"llama.attention.head_count", INT32, "i", -1), "head_count' must be from 0 to 65536, not -1"),
        (scalar(b"llama.attention.head_count", FLOAT32, "f", 8.0), "head_count' must be a whole number, not a float"),
        (scalar(b"llama.attention.head_count", 7, "B", 1), "must be a whole number, not a truth value"),
        (key(b"llama.attention.head_count", STRING, text(b"8")), "must be a whole number, not a text"),
        (key(b"llama.block_count", ARRAY, struct.pack("<IQf", FLOAT32, 1, 8.0)), "must be a whole number, not a float"),
        (numbers(b"llama.attention.head_count_kv", 8, -1), "head_count_kv' must be from 0 to 65536, not -1"),
        (numbers(b"llama.feed_forward_length", *[1] * (BLOCKS_MAX + 1)), "has 513 numbers, at most 512"),
        (number(b"llama.context_length", 2**32 - 1), "context_length' must be from 0 to 2147483647, not 4294967295"),
        (scalar(b"llama.embedding_length", 10, "Q", 2**64 - 1), "embedding_length' must be from 1 to 1048576"),
        (number(b"llama.embedding_length", 0), "embedding_length' must be from 1"),
        (number(b"llama.block_count", 0), "block_count' must be from 1"),
        (number(b"llama.expert_count", 2**31), "expert_count' must be from 0"),
        (number(b"clip.vision.attention.head_count", 2**20), "head_count' must be from 0"),
    ],
)
def test_counts_that_no_model_has_are_refused_by_name(bad: bytes, words: str) -> None:
    assert words in complaint(model(bad)).message
    assert words in complaint(File(keys=[bad, *model().keys])).message


def test_everything_at_once_is_refused_before_it_takes_long() -> None:
    count = 30_000
    file = File(
        keys=[*many_keys(count - 2).keys, *strings(1_000_000).keys],
        tensors=many_tensors(count).tensors,
        data=bytes(32 * count),
    )
    content = file.content()
    started = time.process_time()
    assert "too many keys, tensors, texts" in complaint(content).message
    assert time.process_time() - started < VERDICT_S_MAX
