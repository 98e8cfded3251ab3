"""The vocabulary of a loaded model: pieces, end tokens, text to token ids."""

import ctypes
from collections.abc import Sequence
from itertools import compress, repeat
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np

from runner.engine.bindings import library

_ATTRIBUTE_UNKNOWN, _ATTRIBUTE_CONTROL = 1, 8  # llama_token_attr
_Piece = ctypes.c_char * 256


class Pieces(Sequence[bytes]):
    """The bytes of each token, which are read from the engine when they are first asked for.

    All of a large vocabulary are a third of a second, which no load has to wait for.
    """

    def __init__(self, pointer: int, size: int) -> None:
        """`pointer` is the llama_vocab of so many tokens."""
        self._pointer = pointer
        self._known: list[bytes | None] = [None] * size

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, token_id: Any) -> Any:
        """Return the bytes of one token."""
        piece = self._known[token_id]
        if piece is None:
            piece = self._known[token_id] = self._read(token_id)
        return piece

    def _read(self, token_id: int) -> bytes:
        if token_id < 0:  # the engine aborts
            raise IndexError(token_id)
        array = _Piece
        while True:
            buffer = array()
            length = library.token_to_piece(self._pointer, token_id, buffer, len(buffer), 0, True)
            if length >= 0:
                return buffer.raw[:length]
            array = ctypes.c_char * -length


class Vocabulary:
    """Tables that the per-token path looks up instead of calling C. Methods may be called from any thread."""

    def __init__(self, pointer: int) -> None:
        """`pointer` is the llama_vocab of a model that outlives this object."""
        self._pointer = pointer
        self.size: int = llama.llama_vocab_n_tokens(pointer)
        self.pieces: Sequence[bytes] = Pieces(pointer, self.size)
        ids, same = range(self.size), repeat(pointer)
        hidden = map((_ATTRIBUTE_UNKNOWN | _ATTRIBUTE_CONTROL).__and__, map(library.token_attributes, same, ids))
        self.control: frozenset[int] = frozenset(compress(ids, hidden))
        self.end_tokens: frozenset[int] = frozenset(compress(ids, map(library.token_ends, same, ids)))
        self.bos: int = llama.llama_vocab_bos(pointer)
        self.adds_bos: bool = llama.llama_vocab_get_add_bos(pointer) and self.bos >= 0
        self.suppressed: frozenset[int] = frozenset(self._suppressed())

    def tokenize(self, text: bytes, *, parse_special: bool) -> list[int]:
        """Token ids of UTF-8 text, without begin token. With `parse_special`, control tokens in it are read as such."""
        capacity = len(text) + 8  # a token is at least one byte, apart from an added leading space
        while True:
            ids = np.empty(capacity, np.int32)
            count = library.tokenize(self._pointer, text, len(text), ids.ctypes.data, capacity, False, parse_special)
            if count >= 0:
                result: list[int] = ids[:count].tolist()
                return result
            capacity = -count

    def detokenize(self, ids: list[int]) -> bytes:
        """Return the bytes of tokens, special ones included."""
        return b"".join(self.pieces[token_id] for token_id in ids)

    def _suppressed(self) -> list[int]:
        """Tokens that the model file says must never be sampled."""
        count = ctypes.c_int32(0)
        ids = llama.llama_vocab_get_suppress_tokens(self._pointer, ctypes.byref(count))
        return [ids[index] for index in range(count.value)] if ids else []
