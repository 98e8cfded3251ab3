"""A WordPiece tokenizer, as BERT uses it: lower-cased words, longest pieces first, unknown words as one token."""

import re
import string
import unicodedata
from collections import Counter
from functools import cache

from tools.model_zoo.tokens.merges import learn_merges
from tools.model_zoo.tokens.tokenizer import Tokenizer, TokenType, VocabularyTooSmall, corpus

WORD_START = "\N{LOWER ONE EIGHTH BLOCK}"  # GGUF marks the first piece of a word, where BERT marks all others with ##
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@cache
def word_piece_tokenizer(tokens: int) -> Tokenizer:
    """Return a tokenizer of at most that many tokens that frames a text as `[CLS] text [SEP]`.

    Raises:
        VocabularyTooSmall: ask for more tokens.
    """
    characters = [mark + letter for letter in _characters() for mark in (WORD_START, "")]
    merges_wanted = tokens - len(SPECIAL_TOKENS) - len(characters)
    if merges_wanted < 0:
        raise VocabularyTooSmall(f"{tokens} tokens")
    words = Counter(WORD_START + word for word in re.findall(r"[a-z0-9]+|[^\sa-z0-9]", _normal(corpus())))
    learned = [left + right for left, right in learn_merges(words, merges_wanted)]
    texts = list(dict.fromkeys([*SPECIAL_TOKENS, *characters, *learned]))
    special_ids = {text: index for index, text in enumerate(SPECIAL_TOKENS)}
    types = [TokenType.CONTROL] * len(SPECIAL_TOKENS) + [TokenType.NORMAL] * (len(texts) - len(SPECIAL_TOKENS))
    return Tokenizer(
        tokens=len(texts),
        control_ids=tuple(special_ids.values()),
        metadata=(
            ("tokenizer.ggml.model", "bert"),
            ("tokenizer.ggml.pre", "default"),
            ("tokenizer.ggml.token_type_count", 2),
            ("tokenizer.ggml.tokens", texts),
            ("tokenizer.ggml.token_type", [int(kind) for kind in types]),
            ("tokenizer.ggml.bos_token_id", special_ids["[CLS]"]),
            ("tokenizer.ggml.cls_token_id", special_ids["[CLS]"]),
            ("tokenizer.ggml.eos_token_id", special_ids["[SEP]"]),
            ("tokenizer.ggml.seperator_token_id", special_ids["[SEP]"]),  # sic: the format spells it so
            ("tokenizer.ggml.unknown_token_id", special_ids["[UNK]"]),
            ("tokenizer.ggml.padding_token_id", special_ids["[PAD]"]),
            ("tokenizer.ggml.mask_token_id", special_ids["[MASK]"]),
        ),
    )


def _characters() -> list[str]:
    ascii_characters = set(string.ascii_lowercase + string.digits + string.punctuation)
    return sorted(ascii_characters | {letter for letter in _normal(corpus()) if not letter.isspace()})


def _normal(text: str) -> str:
    """Lower the case and drop the accents, as llama.cpp does before it splits a text into pieces."""
    decomposed = unicodedata.normalize("NFD", text.lower())
    return "".join(letter for letter in decomposed if unicodedata.category(letter) != "Mn")
