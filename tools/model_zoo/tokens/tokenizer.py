"""Parts that every tokenizer of the zoo contributes to a model file, and growth of a vocabulary beyond the corpus."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib.resources import files
from itertools import islice

Value = bool | int | float | str | list[bool] | list[int] | list[float] | list[str]


class TokenType(IntEnum):
    """Token types as GGUF numbers them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """A complete tokenizer: its GGUF entries, its size, and the ids that a model should rarely choose."""

    metadata: tuple[tuple[str, Value], ...]
    tokens: int
    control_ids: tuple[int, ...]


class VocabularyTooSmall(ValueError):
    """The asked number of tokens does not even hold the special and byte tokens; ask for more."""


@cache
def corpus() -> str:
    """Return the text that all tokenizers learn from."""
    return files(__package__).joinpath("corpus.txt").read_text(encoding="utf-8")


def invented_pairs(pieces: list[str], *, word_start: str, taken: set[str], count: int) -> list[tuple[str, str]]:
    """Return pairs of pieces whose concatenations are new tokens, for vocabularies of a real model's size.

    Only letters are joined, and only the left half may start a word: such tokens look like words, can be reached by
    the tokenizer, and cost a loader what real ones cost.
    """
    plain = [piece for piece in pieces if len(piece) > 1 and piece.isascii() and piece.isalpha()]
    starts = [piece for piece in pieces if len(piece) > 2 and _is_word(piece, word_start)]
    found = list(islice(_new_pairs(starts + plain, plain, set(taken)), count))
    if len(found) < count:
        raise ValueError(f"the corpus yields {len(found)} invented tokens, {count} are asked for")
    return found


def _is_word(piece: str, word_start: str) -> bool:
    rest = piece.removeprefix(word_start)
    return rest != piece and rest.isascii() and rest.isalpha()


def _new_pairs(lefts: Iterable[str], rights: list[str], taken: set[str]) -> Iterator[tuple[str, str]]:
    for left in lefts:
        for right in rights:
            if left + right not in taken:
                taken.add(left + right)
                yield left, right
