"""llama.cpp's own samplers on candidate lists, as the judge of ours. Run as a module it walks grammars at random.

llama.cpp's grammar ends the process where it is given a token that it does not allow, so the walk runs in a child.
"""

import codecs
import contextlib
import ctypes
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from time import thread_time
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from runner.core.grammar.constraint_text import ConstraintText, lark_text
from runner.core.grammar.token_grammar import GrammarCursor, GrammarTooComplex, TokenGrammar
from runner.core.grammar.token_tree import TokenTree
from runner.engine.bindings.library import start_engine
from runner.engine.llama.vocabulary import Vocabulary

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
TOKENS = 40


class Oracle:
    """A vocabulary, and samplers on it."""

    def __init__(self, path: Path) -> None:
        start_engine()
        parameters = llama.llama_model_default_params()
        parameters.vocab_only = True
        self._model = llama.llama_model_load_from_file(str(path).encode(), parameters)
        self.pointer = llama.llama_model_get_vocab(self._model)
        self.vocabulary = Vocabulary(self.pointer)

    def apply(self, sampler: Any, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits after a sampler; what it left out is minus infinity."""
        candidates = np.zeros(logits.size, CANDIDATE)
        candidates["id"] = np.arange(logits.size)
        candidates["logit"] = logits
        array = llama.llama_token_data_array(
            data=candidates.ctypes.data_as(llama.llama_token_data_p), size=logits.size, selected=-1, sorted=False
        )
        llama.llama_sampler_apply(sampler, ctypes.byref(array))
        after = np.full_like(logits, -np.inf)
        for place in range(array.size):
            after[int(array.data[place].id)] = array.data[place].logit
        return after

    def grammar(self, text: str) -> Any:
        sampler = llama.llama_sampler_init_grammar(self.pointer, text.encode(), b"root")
        assert sampler, "llama.cpp cannot read the grammar"
        return sampler

    def allowed(self, sampler: Any) -> list[int]:
        """Ids that llama.cpp's grammar allows."""
        after = self.apply(sampler, np.zeros(self.vocabulary.size, np.float32))
        return np.flatnonzero(after == 0.0).tolist()


def is_utf8(text: bytes) -> bool:
    """Return True for whole UTF-8, or the beginning of such a text."""
    if re.search(rb"\xed[\xa0-\xbf]", text):  # Python looks at the third byte of a surrogate first
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError:
        return False
    return True


def walk(path: Path, texts: list[str], seeds: range) -> int:
    """Follow grammars with tokens drawn at random, compare the allowed ones at every step, and count the steps."""
    oracle = Oracle(path)
    vocabulary = oracle.vocabulary
    # llama.cpp lets control tokens other than end tokens match by their names; the comparison does too.
    tree = TokenTree(vocabulary.pieces)
    steps = 0
    for text in texts:
        lark = lark_text(ConstraintText(kind="grammar", text=text), tree)
        shared = TokenGrammar(lark, tree, end_tokens=vocabulary.end_tokens, cpu_s=thread_time)
        for seed in seeds:
            draw = random.Random(seed)
            judge, cursor = oracle.grammar(text), GrammarCursor(shared)
            with contextlib.suppress(GrammarTooComplex):  # a random grammar may be ambiguous without end
                for said in _steps(oracle, judge, cursor, draw):
                    steps += bool(said)
            llama.llama_sampler_free(judge)
    return steps


def _steps(oracle: Oracle, judge: Any, cursor: GrammarCursor, draw: random.Random) -> Iterator[bytes]:
    """Draw tokens of one answer, yield its text after each."""
    vocabulary, said = oracle.vocabulary, b""
    for _ in range(TOKENS):
        ids = cursor.allowed().tolist()
        theirs = oracle.allowed(judge)
        # llama.cpp does not look at every byte of a character; what is no UTF-8 it may let through.
        broken = {one for one in set(theirs) - set(ids) if not is_utf8(said + vocabulary.pieces[one])}
        assert set(ids) == set(theirs) - broken, (said, set(ids) ^ set(theirs))
        for token_id in draw.sample(range(vocabulary.size), 20):
            assert cursor.allows(token_id) == (token_id in set(ids))
        token_id = draw.choice(sorted(ids))
        if token_id in vocabulary.end_tokens:
            return
        llama.llama_sampler_accept(judge, token_id)
        cursor.accept(token_id)
        said += vocabulary.pieces[token_id]
        yield said


if __name__ == "__main__":
    given = json.loads(sys.stdin.read())
    sys.stdout.write(f"{walk(Path(given['path']), given['texts'], range(given['seeds']))}\n")
