"""The vocabulary of a loaded model: pieces, end tokens, text to token ids."""

import ctypes
from itertools import compress, repeat

import llama_cpp.llama_cpp as llama
import numpy as np

from runner.engine.bindings import library

_ATTRIBUTE_UNKNOWN, _ATTRIBUTE_CONTROL = 1, 8  # llama_token_attr
_PIECE_BYTES = 256


class Vocabulary:
    """Tables that the per-token path looks up instead of calling C. Methods may be called from any thread."""

    def __init__(self, pointer: int) -> None:
        """`pointer` is the llama_vocab of a model that outlives this object."""
        self._pointer = pointer
        self.size: int = llama.llama_vocab_n_tokens(pointer)
        ids, same = range(self.size), repeat(pointer)
        # All at once, although few are ever needed: a stream may ask for one when the engine has freed its model.
        self.pieces: list[bytes] = list(map(self._piece, ids, repeat(ctypes.create_string_buffer(_PIECE_BYTES))))
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

    def _piece(self, token_id: int, buffer: "ctypes.Array[ctypes.c_char]") -> bytes:
        """Return the bytes of a token. The buffer is written over."""
        length = library.token_to_piece(self._pointer, token_id, buffer, len(buffer), 0, True)
        return buffer.raw[:length] if length >= 0 else self._piece(token_id, ctypes.create_string_buffer(-length))

    def _suppressed(self) -> list[int]:
        """Tokens that the model file says must never be sampled."""
        count = ctypes.c_int32(0)
        ids = llama.llama_vocab_get_suppress_tokens(self._pointer, ctypes.byref(count))
        return [ids[index] for index in range(count.value)] if ids else []
