"""The tokenizer: byte-level BPE as GPT-2 splits text, trained on the corpus, with ChatML's special tokens.

GPT-2's split has two merits here. llama.cpp knows it, and it gives the same tokens whether a prompt is tokenized as a
whole or in segments of template text and user text, because no pattern of it reaches over a line's end into a word.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.demo_model.chat import read_template
from tools.demo_model.corpus import Corpus

VOCABULARY_TOKENS = 1024
PRE_TOKENIZER = "gpt-2"  # llama.cpp's name for this split


class Visibility(Enum):
    """Visibility of a special token in the text that a client sees."""

    HIDDEN = "control"
    SHOWN = "user_defined"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialToken:
    """A token that is never split, and what it is to a reader."""

    text: str
    visibility: Visibility


END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (
    SpecialToken(text=END_OF_TEXT, visibility=Visibility.HIDDEN),
    SpecialToken(text="<|im_start|>", visibility=Visibility.HIDDEN),
    SpecialToken(text="<|im_end|>", visibility=Visibility.HIDDEN),
    # A gateway finds tool calls and thoughts by these markers, so they stay in the text.
    SpecialToken(text="<tool_call>", visibility=Visibility.SHOWN),
    SpecialToken(text="</tool_call>", visibility=Visibility.SHOWN),
    SpecialToken(text="<think>", visibility=Visibility.SHOWN),
    SpecialToken(text="</think>", visibility=Visibility.SHOWN),
)


def train_tokenizer(corpus: Corpus) -> Tokenizer:
    """Learn the merges from the texts of the corpus; the 256 bytes are always in the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(corpus), trainer)
    tokenizer.add_special_tokens([AddedToken(token.text, normalized=False) for token in SPECIAL_TOKENS])
    if tokenizer.get_vocab_size() != VOCABULARY_TOKENS:
        raise ValueError(f"the corpus is too small: it gives {tokenizer.get_vocab_size()} tokens")
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer that `train_tokenizer` made and `save` wrote."""
    return Tokenizer.from_file(str(path))


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the token ids of a text; special tokens that it spells out become their own ids."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _texts(corpus: Corpus) -> Iterator[str]:
    seen: set[str] = set()
    for question in (*corpus.questions, *corpus.unknown):
        words = (message["content"] or "" for message in question.messages)
        for text in (*words, question.answer.text(thinking=True)):
            if text not in seen:
                seen.add(text)
                yield text
    for completion in corpus.completions:
        yield completion.prompt + completion.text
    yield read_template()
