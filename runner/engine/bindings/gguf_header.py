"""Reads a GGUF header through the engine's own reader, after our checks. No tensor byte is read."""

import ctypes
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from mmap import PROT_READ, mmap
from pathlib import Path

from common.errors import BadModelFile
from common.paths import open_regular
from runner.core.model.description import DETAILS_BYTES_MAX, Scalar, TensorFacts, TokenType, Value, too_long
from runner.core.model.gguf_check import (
    ARRAY_ELEMENTS_MAX,
    BLOCKS_MAX,
    HEADER_BYTES_MAX,
    STRING_BYTES_MAX,
    TEMPLATE_BYTES_MAX,
    BadGguf,
    BlockFormat,
    TextArray,
    check_gguf,
    read_texts,
)
from runner.engine.bindings import ggml

METADATA_ITEMS_MAX = 5
# Of a text that is described; a longer one comes as empty, as an array of more items does.
TEXT_BYTES_SHOWN = TEMPLATE_BYTES_MAX
TOKEN_BYTES_LEAST = 4  # of a token that is described, beside its text
TOKENS_KEY = "tokenizer.ggml.tokens"
TOKEN_TYPES_KEY = "tokenizer.ggml.token_type"  # noqa: S105  # a key of the file format, no secret


def check_model_file(path: Path) -> None:
    """Refuse files that the engine could choke on.

    Raises:
        BadModelFile: missing, unreadable, truncated or malformed; the text has path, offset and errno.
    """
    with _open_checked(path)[0]:
        pass


def _open_checked(path: Path) -> tuple[mmap, Mapping[bytes, TextArray]]:
    """Return a checked file and where the arrays of texts are. Raises as `check_model_file`."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes == 0:
                raise BadModelFile(f"{path}: the file is empty, or still being written")
            with ExitStack() as stack:
                content = stack.enter_context(mmap(file.fileno(), 0, prot=PROT_READ))
                with memoryview(content) as data:
                    texts = check_gguf(data, _block_formats())
                stack.pop_all()  # open from here on
                return content, texts
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

    def __init__(self, pointer: int, content: mmap, texts: Mapping[bytes, TextArray]) -> None:
        """`content` is the file, and `texts` has the arrays of texts in it, by their keys."""
        self._pointer = pointer
        self._content = content
        self._text_arrays = texts
        self._ids = {self._key(index): index for index in range(ggml.gguf_key_count(pointer))}

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
        found = {}
        for key, index in self._ids.items():
            if ggml.gguf_value_type(self._pointer, index) == ggml.GGUF_ARRAY:
                count = ggml.gguf_array_count(self._pointer, index)
                kind = ggml.gguf_array_type(self._pointer, index)
                if 0 < count <= BLOCKS_MAX and kind in ggml.GGUF_SCALARS:
                    found[key] = self._scalars(index, kind, count)
        return found

    def tensors(self) -> list[TensorFacts]:
        """Return the tensor table."""
        return [self._tensor(index) for index in range(ggml.gguf_tensor_count(self._pointer))]

    def shapes(self) -> list[tuple[str, str, list[int]]]:
        """Name, type and lengths of every tensor, the innermost dimension first."""
        return [
            (
                _text(ggml.gguf_tensor_name(self._pointer, index)),
                _text(ggml.type_name(ggml.gguf_tensor_type(self._pointer, index))),
                [int(length) for length in ggml.gguf_tensor_shape(self._pointer, index)[: facts.dimension_count]],
            )
            for index, facts in enumerate(self.tensors())
        ]

    def vocabulary_size(self) -> int:
        """Tokens of the tokenizer; 0 without one."""
        return self._count(TOKENS_KEY, ggml.GGUF_STRING)

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

    def _texts(self, key: str) -> list[bytes]:
        """Return the texts of an array; none if the key is something else."""
        array = self._text_arrays.get(key.encode())
        return list(read_texts(self._content, array)) if array else []

    def tokens_of(self, *kinds: TokenType) -> list[int]:
        """Ids of the tokens of these types."""
        int32 = 5
        count = min(self._count(TOKEN_TYPES_KEY, int32), self.vocabulary_size())
        if not count:
            return []
        types = (ctypes.c_int32 * count).from_address(ggml.gguf_array_data(self._pointer, self._ids[TOKEN_TYPES_KEY]))
        return [index for index, kind in enumerate(types) if kind in kinds]

    def _key(self, index: int) -> str:
        return _text(ggml.gguf_key(self._pointer, index))

    def _count(self, key: str, kind: int) -> int:
        """Items of an array of that type; 0 if the key is something else."""
        index = self._ids.get(key)
        if index is None or ggml.gguf_value_type(self._pointer, index) != ggml.GGUF_ARRAY:
            return 0
        if ggml.gguf_array_type(self._pointer, index) != kind:
            return 0
        count: int = ggml.gguf_array_count(self._pointer, index)
        return count

    def _values(self, items_max: int, text_bytes_max: int, bytes_max: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for key, index in self._ids.items():
            kind = ggml.gguf_value_type(self._pointer, index)
            if kind == ggml.GGUF_STRING:
                raw = [ggml.gguf_value_string(self._pointer, index) or b""]
            elif kind != ggml.GGUF_ARRAY:
                found[key] = ggml.gguf_scalar_readers[kind](self._pointer, index)
                continue
            else:
                count = ggml.gguf_array_count(self._pointer, index)
                count = count if count <= items_max else 0
                items = ggml.gguf_array_type(self._pointer, index)
                if items != ggml.GGUF_STRING:
                    found[key] = self._scalars(index, items, count) if count else []
                    continue
                raw = self._texts(key) if count else []
            # Before they are decoded: what is not UTF-8 takes long.
            bytes_max -= sum(size for text in raw if (size := len(text)) <= text_bytes_max)
            if bytes_max < 0:
                raise too_long()
            texts = _decoded([text if len(text) <= text_bytes_max else b"" for text in raw])
            found[key] = texts if kind == ggml.GGUF_ARRAY else texts[0]
        return found

    def _scalars(self, index: int, kind: int, count: int) -> list[Scalar]:
        return list((ggml.GGUF_SCALARS[kind] * count).from_address(ggml.gguf_array_data(self._pointer, index)))

    def _tensor(self, index: int) -> TensorFacts:
        lengths = ggml.gguf_tensor_shape(self._pointer, index)[:4]
        element_count = 1
        for length in lengths:
            element_count *= length
        return TensorFacts(
            name=_text(ggml.gguf_tensor_name(self._pointer, index)),
            type_name=_text(ggml.type_name(ggml.gguf_tensor_type(self._pointer, index))),
            dimension_count=max((i + 1 for i, length in enumerate(lengths) if length > 1), default=1),
            element_count=element_count,
            size_bytes=ggml.gguf_tensor_size_bytes(self._pointer, index),
        )


@contextmanager
def open_gguf_header(path: Path) -> Iterator[GgufHeader]:
    """Check the file, then read its header with the engine.

    Raises:
        BadModelFile: as `check_model_file`, or the engine's reader refuses the file.
    """
    content, texts = _open_checked(path)
    with content:
        pointer = ggml.gguf_init_from_file(os.fsencode(path), ggml.GgufInitParams(no_alloc=True, ctx=None))
        if not pointer:
            raise BadModelFile(f"{path}: the engine cannot read the header")
        try:
            yield GgufHeader(pointer, content, texts)
        finally:
            ggml.gguf_free(pointer)


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
