"""A byte-level BPE tokenizer, as GPT-2 and Qwen use it: any byte sequence has tokens, and none is unknown."""

import re
from collections import Counter
from functools import cache

from tools.model_zoo.tokens.merges import Pair, learn_merges
from tools.model_zoo.tokens.tokenizer import Tokenizer, TokenType, VocabularyTooSmall, corpus, invented_pairs

# Splits text into words the way llama.cpp's "qwen2" rule does, as far as `re` can say it (no Unicode classes).
WORDS = re.compile(
    r"'(?:[sdmt]|ll|ve|re)|[^\r\n\w]?[^\W\d_]+|\d| ?(?:[^\s\w]|_)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+", re.IGNORECASE
)

END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"
CONTROL_TOKENS = (
    END_OF_TEXT,
    "<|im_start|>",
    END_OF_TURN,
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
)
VISIBLE_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
SPECIAL_TOKENS = CONTROL_TOKENS + VISIBLE_TOKENS


@cache
def byte_alphabet() -> tuple[str, ...]:
    """Return the character that stands for each byte: itself where it prints, else the next free one from U+0100.

    Source: the byte-to-unicode table of GPT-2, which every "gpt2" tokenizer in a GGUF shares.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(spare)) for byte in range(256))


@cache
def byte_level_tokenizer(tokens: int) -> Tokenizer:
    """Return a tokenizer of exactly that many tokens: bytes, merges, invented tokens, special tokens last.

    Raises:
        VocabularyTooSmall: ask for at least 256 tokens and the special ones.
    """
    merges_wanted = tokens - 256 - len(SPECIAL_TOKENS)
    if merges_wanted < 0:
        raise VocabularyTooSmall(f"{tokens} tokens")
    merges = _merges(merges_wanted)
    texts = [*byte_alphabet(), *(left + right for left, right in merges), *SPECIAL_TOKENS]
    types = [TokenType.NORMAL] * (tokens - len(SPECIAL_TOKENS))
    types += [TokenType.CONTROL] * len(CONTROL_TOKENS) + [TokenType.USER_DEFINED] * len(VISIBLE_TOKENS)
    end_of_text = texts.index(END_OF_TEXT)
    return Tokenizer(
        tokens=tokens,
        control_ids=tuple(range(end_of_text, end_of_text + len(CONTROL_TOKENS))),
        metadata=(
            ("tokenizer.ggml.model", "gpt2"),
            ("tokenizer.ggml.pre", "qwen2"),
            ("tokenizer.ggml.tokens", texts),
            ("tokenizer.ggml.token_type", [int(kind) for kind in types]),
            ("tokenizer.ggml.merges", [f"{left} {right}" for left, right in merges]),
            ("tokenizer.ggml.eos_token_id", texts.index(END_OF_TURN)),
            ("tokenizer.ggml.bos_token_id", end_of_text),
            ("tokenizer.ggml.padding_token_id", end_of_text),
            ("tokenizer.ggml.add_bos_token", False),
        ),
    )


def _merges(count: int) -> list[Pair]:
    alphabet = byte_alphabet()
    words: Counter[str] = Counter("".join(alphabet[byte] for byte in word.encode()) for word in WORDS.findall(corpus()))
    learned: list[Pair] = []
    made: set[str] = set(alphabet)
    for left, right in learn_merges(words, count):
        if left + right not in made:  # two ways to the same token: a vocabulary holds each text once
            made.add(left + right)
            learned.append((left, right))
    pieces = [left + right for left, right in learned]
    space = alphabet[ord(" ")]
    return learned + invented_pairs(pieces, word_start=space, taken=made, count=count - len(learned))
