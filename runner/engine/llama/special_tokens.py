"""The tokens that a model's vocabulary puts around inputs, found by asking the tokenizer."""

import llama_cpp.llama_cpp as llama
import numpy as np

from runner.core.pooled.embedding_inputs import Frame
from runner.core.pooled.rerank_prompt import PairTokens
from runner.engine.bindings import library

_PROBE = b"a"
_PROBE_TOKENS_MAX = 16


def read_frame(vocabulary_pointer: int) -> Frame:
    """Return the tokens added around a text. Flags do not suffice: a word-piece tokenizer adds a separator."""
    plain = _tokenize(vocabulary_pointer, add_special=False)
    framed = _tokenize(vocabulary_pointer, add_special=True)
    for start in range(len(framed) - len(plain) + 1):
        stop = start + len(plain)
        if framed[start:stop] == plain:
            return Frame(tuple(framed[:start]), tuple(framed[stop:]))
    return Frame()


def read_pair_tokens(vocabulary_pointer: int) -> PairTokens:
    """Return the tokens around and between a question and a document. Without an end token, the separator is one."""
    sep = _token(llama.llama_vocab_sep(vocabulary_pointer))
    eos = _token(llama.llama_vocab_eos(vocabulary_pointer))
    bos = _token(llama.llama_vocab_bos(vocabulary_pointer))
    return PairTokens(
        bos=bos if llama.llama_vocab_get_add_bos(vocabulary_pointer) else None,
        eos=(sep if eos is None else eos) if llama.llama_vocab_get_add_eos(vocabulary_pointer) else None,
        sep=sep if llama.llama_vocab_get_add_sep(vocabulary_pointer) else None,
    )


def read_rerank_template(model_pointer: int) -> str:
    """Return the model's own prompt for ranking, with {query} and {document} in it; empty if it has none."""
    template: bytes | None = llama.llama_model_chat_template(model_pointer, b"rerank")
    return (template or b"").decode(errors="replace")


def _token(token_id: int) -> int | None:
    return token_id if token_id >= 0 else None


def _tokenize(vocabulary_pointer: int, *, add_special: bool) -> list[int]:
    ids = np.empty(_PROBE_TOKENS_MAX, np.int32)
    count = library.tokenize(
        vocabulary_pointer, _PROBE, len(_PROBE), ids.ctypes.data, _PROBE_TOKENS_MAX, add_special, False
    )
    found: list[int] = ids[: max(0, count)].tolist()
    return found
