"""Limit on reasoning: after so many tokens the reasoning of an answer is closed. Pure.

Where an answer is follows from its tokens alone, so one that goes on in another runner is closed at the same place.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from runner.core.grammar.free_text import check_markers
from runner.core.sequence.text_stream import incomplete_tail_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningBudget:
    """Reasoning limit of a request. `closing_ids` are the tokens of `closing`, `pieces` all of the vocabulary."""

    opening: bytes
    closing: bytes
    tokens_max: int
    closing_ids: tuple[int, ...]
    pieces: Sequence[bytes]


def reasoning_budget(
    opening: str, closing: str, tokens_max: int, *, tokenize: Callable[[bytes], list[int]], pieces: Sequence[bytes]
) -> ReasoningBudget:
    """Return a budget of a request; `tokenize` reads special tokens as such.

    Raises:
        InvalidRequest: no closing text, or one that is too long.
    """
    check_markers(opening, closing, param="reasoning_budget")
    return ReasoningBudget(
        opening=opening.encode(),
        closing=closing.encode(),
        tokens_max=tokens_max,
        closing_ids=tuple(tokenize(closing.encode())),
        pieces=pieces,
    )


class ReasoningCursor:
    """Progress of one answer through its reasoning. Only the engine thread uses it after its creation."""

    __slots__ = ("_begun", "_budget", "_inside", "_left", "_pending", "_said")

    def __init__(self, budget: ReasoningBudget, *, resumed: Iterable[int] = ()) -> None:
        """`resumed` tokens are part of the answer already."""
        self._budget = budget
        self._said = bytearray()  # before the opening all, then the end of it: as much as can be a marker
        self._begun = self._inside = not budget.opening
        self._left = budget.tokens_max
        self._pending: list[int] = []  # of the closing text, last first
        for token_id in resumed:
            self.accept(token_id)

    def forced(self) -> int | None:
        """Return the token that has to come next; None: any."""
        if not self._inside:
            return None
        if not self._pending and self._left <= 0 and not incomplete_tail_bytes(bytes(self._said)):
            self._pending = list(reversed(self._budget.closing_ids))
        return self._pending[-1] if self._pending else None

    def accept(self, token_id: int) -> None:
        """Go on with a token."""
        if self._begun and not self._inside:
            return
        forced = self.forced()
        self._said += self._budget.pieces[token_id]
        if self._begun:
            if forced is None:
                self._left -= 1
            elif token_id == forced:
                self._pending.pop()
            self._look_for_end()
        else:
            self._look_for_beginning()

    def _look_for_beginning(self) -> None:
        said = bytes(self._said).lstrip()
        opening = self._budget.opening
        if said.startswith(opening):
            self._begun = self._inside = True
            self._said = bytearray(said[len(opening) :])
            self._look_for_end()
        elif not opening.startswith(said):
            self._begun = True  # with something else: there is no reasoning

    def _look_for_end(self) -> None:
        closing = self._budget.closing
        if closing in self._said:
            self._inside = False
            self._said.clear()
        else:
            del self._said[: -len(closing)]
