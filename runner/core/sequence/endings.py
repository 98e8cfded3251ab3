"""Reasons for the end of a sequence, and the rules that end it when a token is sampled. Pure."""

from dataclasses import dataclass
from enum import Enum

# A model that says the same token more often in a row does not come out of it. Rows of zeros, dots, emoji are shorter.
# Source: Ollama, which had 30 and cut such rows (https://github.com/ollama/ollama/pull/18374).
REPEATED_TOKENS_MAX = 100
# No answer needs more than so many contexts; a larger limit would only keep a slot busy.
CONTEXTS_MAX = 10


class EndReason(Enum):
    """Reason for which a sequence ended by itself."""

    END_TOKEN = "end_token"  # noqa: S105  # not a password
    STOP_STRING = "stop_string"
    LENGTH = "length"


class CutBy(Enum):
    """Limit that a sequence with the reason LENGTH has reached."""

    MAX_TOKENS = "max_tokens"
    CONTEXT = "context"
    REPETITION = "repetition"


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a sequence."""

    reason: EndReason
    stop_string: str = ""
    cut_by: CutBy | None = None


END_TOKEN = Ending(EndReason.END_TOKEN)
LENGTH = Ending(EndReason.LENGTH, cut_by=CutBy.MAX_TOKENS)
CONTEXT_FULL = Ending(EndReason.LENGTH, cut_by=CutBy.CONTEXT)
REPETITION = Ending(EndReason.LENGTH, cut_by=CutBy.REPETITION)


def generated_tokens_max(max_tokens: int | None, context_tokens: int) -> int:
    """Most tokens that a sequence may generate."""
    ceiling = CONTEXTS_MAX * context_tokens
    return ceiling if max_tokens is None else min(max_tokens, ceiling)


class EndRules:
    """Decides after each sampled token whether the sequence ends. Stop strings are the text's business."""

    __slots__ = ("_end_tokens", "_last_token", "_limit", "_repeats", "_repeats_max", "generated")

    def __init__(self, *, end_tokens: frozenset[int], limit: int, repeats_max: int, resumed: tuple[int, ...]) -> None:
        """`end_tokens` is empty to go on after an end token; `repeats_max` 0 lets a sequence loop."""
        self._end_tokens = end_tokens
        self._limit = limit
        self._repeats_max = repeats_max
        self._last_token = -1
        self._repeats = 0
        self.generated = 0
        for token_id in resumed:
            self.count(token_id)

    def count(self, token_id: int) -> Ending | None:
        """Count a token and say whether it is the last one."""
        self.generated += 1
        if token_id == self._last_token:
            self._repeats += 1
        else:
            self._last_token = token_id
            self._repeats = 1
        if token_id in self._end_tokens:
            return END_TOKEN
        if self.generated >= self._limit:
            return LENGTH
        if self._repeats_max and self._repeats > self._repeats_max:
            return REPETITION
        return None

    @property
    def left(self) -> int:
        """Return how many more tokens may be generated."""
        return self._limit - self.generated

    @property
    def exhausted(self) -> bool:
        """True if not one more token may be generated."""
        return self.generated >= self._limit
