"""Reads a GGUF header that passed our checks. No tensor byte is read."""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from math import prod
from mmap import PROT_READ, mmap
from pathlib import Path

from common.errors import BadModelFile
from common.paths import open_regular
from runner.core.model.description import DETAILS_BYTES_MAX, Scalar, TensorFacts, TokenType, Value, too_long
from runner.core.model.gguf_check import (
    ARRAY_ELEMENTS_MAX,
    BLOCKS_MAX,
    HEADER_BYTES_MAX,
    INT32,
    STRING,
    STRING_BYTES_MAX,
    TEMPLATE_BYTES_MAX,
    TOKENS_KEY,
    BadGguf,
    BlockFormat,
    CheckedGguf,
    TensorEntry,
    check_gguf,
    read_numbers,
    read_texts,
)
from runner.engine.bindings import ggml

METADATA_ITEMS_MAX = 5
# Of a text that is described; a longer one comes as empty, as an array of more items does.
TEXT_BYTES_SHOWN = TEMPLATE_BYTES_MAX
TOKEN_BYTES_LEAST = 4  # of a token that is described, beside its text
TOKEN_TYPES_KEY = b"tokenizer.ggml.token_type"  # a key of the file format, no secret


def check_model_file(path: Path) -> None:
    """Refuse files that the engine could choke on.

    Raises:
        BadModelFile: missing, unreadable, truncated or malformed; the text has path, offset and errno.
    """
    with _open_checked(path)[0]:
        pass


def _open_checked(path: Path) -> tuple[mmap, CheckedGguf]:
    """Return a checked file and what its header holds. Raises as `check_model_file`."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes == 0:
                raise BadModelFile(f"{path}: the file is empty, or still being written")
            with ExitStack() as stack:
                content = stack.enter_context(mmap(file.fileno(), 0, prot=PROT_READ))
                with memoryview(content) as data:
                    checked = check_gguf(data, _block_formats())
                stack.pop_all()  # open from here on
                return content, checked
    except BadGguf as error:
        raise BadModelFile(f"{path}: {error.message} (offset {error.offset})") from None
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "EIO")
        raise BadModelFile(f"{path}: {error.strerror or error} ({name})") from error


def _block_formats() -> dict[int, BlockFormat]:
    """Tensor types of this build; removed ones have blocks of no elements."""
    formats = {}
    for number in range(ggml.TYPE_COUNT):
        elements = ggml.type_block_elements(number)
        if elements > 0:
            formats[number] = BlockFormat(elements=elements, size_bytes=ggml.type_size_bytes(number))
    return formats


class GgufHeader:
    """An open header. Strings that are not UTF-8 come with replacement characters."""

    def __init__(self, content: mmap, checked: CheckedGguf) -> None:
        """`content` is the checked file."""
        self._content = content
        self._places, self._rows = checked

    def metadata(self) -> dict[str, Value]:
        """Every key; arrays of more than a few items and long texts come as empty.

        Raises:
            BadModelFile: the texts are more than a description may hold.
        """
        return self._values(METADATA_ITEMS_MAX, TEXT_BYTES_SHOWN, DETAILS_BYTES_MAX)

    def whole_metadata(self) -> dict[str, Value]:
        """Every key with its whole value."""
        return self._values(ARRAY_ELEMENTS_MAX, STRING_BYTES_MAX, HEADER_BYTES_MAX)

    def layer_arrays(self) -> dict[str, list[Scalar]]:
        """Arrays of numbers that are short enough to have one for each layer."""
        return {
            key.decode(): list(read_numbers(self._content, place))
            for key, place in self._places.items()
            if place.is_array and place.kind != STRING and 0 < place.items <= BLOCKS_MAX
        }

    def tensors(self) -> list[TensorFacts]:
        """Return the tensor table."""
        return [
            TensorFacts(
                name=row.name,
                type_name=_text(ggml.type_name(row.kind)),
                dimension_count=len(_lengths(row)),
                element_count=prod(row.shape),
                size_bytes=row.size_bytes,
            )
            for row in self._rows
        ]

    def shapes(self) -> list[tuple[str, str, list[int]]]:
        """Name, type and lengths of every tensor, the innermost dimension first."""
        return [(row.name, _text(ggml.type_name(row.kind)), _lengths(row)) for row in self._rows]

    def vocabulary_size(self) -> int:
        """Tokens of the tokenizer; 0 without one."""
        return self._count(TOKENS_KEY, STRING)

    def token_texts(self, ids: Sequence[int], *, bytes_max: int) -> dict[int, str]:
        """Return the tokenizer's texts of these tokens; empty for those that it has not.

        Raises:
            BadModelFile: they have more bytes.
        """
        known = range(self.vocabulary_size())
        texts = {index: self._tokens[index] for index in ids if index in known}
        if sum(map(len, texts.values())) + len(ids) * TOKEN_BYTES_LEAST > bytes_max:
            raise too_long()
        return {**dict.fromkeys(ids, ""), **{index: _text(text) for index, text in texts.items()}}

    def token_bytes_max(self) -> int:
        """Return the length of the longest token's text; 0 without a tokenizer."""
        return max(map(len, self._tokens), default=0)

    @cached_property
    def _tokens(self) -> list[bytes]:
        return self._texts(TOKENS_KEY)

    def _texts(self, key: bytes) -> list[bytes]:
        """Return the texts of an array; none if the key is something else."""
        return list(read_texts(self._content, self._places[key])) if self._count(key, STRING) else []

    def tokens_of(self, *kinds: TokenType) -> list[int]:
        """Ids of the tokens of these types."""
        if not self._count(TOKEN_TYPES_KEY, INT32):
            return []
        types = read_numbers(self._content, self._places[TOKEN_TYPES_KEY])[: self.vocabulary_size()]
        return [index for index, kind in enumerate(types) if kind in kinds]

    def _count(self, key: bytes, kind: int) -> int:
        """Items of an array of that type; 0 if the key is something else."""
        place = self._places.get(key)
        return place.items if place is not None and place.is_array and place.kind == kind else 0

    def _values(self, items_max: int, text_bytes_max: int, bytes_max: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for name, whole in self._places.items():
            key, place = name.decode(), whole._replace(items=whole.items if whole.items <= items_max else 0)
            if place.kind != STRING:
                numbers = read_numbers(self._content, place)
                found[key] = list(numbers) if place.is_array else numbers[0]
                continue
            raw = list(read_texts(self._content, place))
            # Before they are decoded: what is not UTF-8 takes long.
            bytes_max -= sum(size for text in raw if (size := len(text)) <= text_bytes_max)
            if bytes_max < 0:
                raise too_long()
            texts = _decoded([text if len(text) <= text_bytes_max else b"" for text in raw])
            found[key] = texts if place.is_array else texts[0]
        return found


@contextmanager
def open_gguf_header(path: Path) -> Iterator[GgufHeader]:
    """Check the file, and give access to its header. Raises as `check_model_file`."""
    content, checked = _open_checked(path)
    with content:
        yield GgufHeader(content, checked)


def special_tokens(header: GgufHeader) -> Mapping[int, str]:
    """Tokens that the tokenizer reads as control tokens when special tokens are parsed.

    Raises:
        BadModelFile: they are more than a description may hold.
    """
    ids = header.tokens_of(TokenType.CONTROL, TokenType.UNKNOWN)
    return header.token_texts(ids, bytes_max=DETAILS_BYTES_MAX)


def _decoded(texts: list[bytes]) -> list[str]:
    """Decode texts without NULs, all at once: a vocabulary has hundreds of thousands."""
    return b"\0".join(texts).decode(errors="replace").split("\0") if texts else []


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="replace")


def _lengths(row: TensorEntry) -> list[int]:
    """Return the lengths of a tensor without outer dimensions of 1."""
    return list(row.shape[: max((i + 1 for i, length in enumerate(row.shape) if length > 1), default=1)])
