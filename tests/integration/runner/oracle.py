"""A drafter that knows the answer, and is wrong at places of its own choice."""

import random
from collections.abc import Sequence as Tokens

from runner.core.speculation.drafters import Drafter
from runner.engine.batched.sequence import Sequence


class Oracle:
    """Drafts tokens of a known answer, of which a share is right."""

    trust = 2

    def __init__(self, sequence: Sequence, answer: Tokens[int], share: float) -> None:
        self._sequence = sequence
        self._drafts = [
            token_id if random.Random(f"{place}").random() < share else token_id ^ 1
            for place, token_id in enumerate(answer)
        ]

    def draft(self, limit: int) -> Tokens[int]:
        at = self._sequence.rules.generated
        return self._drafts[at : at + limit]


class Oracles:
    """Makes the drafters of an engine; without an answer a sequence has none."""

    def __init__(self) -> None:
        self.answer: Tokens[int] = ()
        self.share = 1.0

    def __call__(self, sequence: Sequence) -> list[Drafter]:
        return [Oracle(sequence, self.answer, self.share)] if self.answer else []
