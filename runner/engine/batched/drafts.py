"""The drafters of one sequence, and how often each of them is right."""

import time
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from common.telemetry.logs import get_logger
from runner.core.speculation.control import Acceptance, Offer
from runner.core.speculation.drafters import Drafter

log = get_logger()

# A drafter that takes longer once is not asked again by that sequence.
DRAFT_NS_MAX = 20_000_000
_NO_OFFER = Offer((), 0.0)


@dataclass(slots=True)
class Drafts:
    """Drafts of one sequence. Lives as long as it generates."""

    said: list[int]  # inputs and generated tokens
    drafters: list[Drafter]
    answer_start: int = 0  # in `said`
    _shares: dict[tuple[int, int], Acceptance] = field(default_factory=dict)  # by drafter and trust
    _offered: tuple[Acceptance, Rows[int]] | None = None

    def offer(self, limit: int) -> Offer:
        """Return the guess of the first drafter that has one."""
        self._offered = None
        for number, drafter in enumerate(self.drafters):
            began_ns = time.thread_time_ns()
            try:
                tokens = drafter.draft(limit)
                trust = drafter.trust
            except Exception as error:  # noqa: BLE001  # the answer goes on without it
                self._switch_off(number, repr(error))
                return _NO_OFFER
            if time.thread_time_ns() - began_ns > DRAFT_NS_MAX:
                self._switch_off(number, "too slow")
                return _NO_OFFER
            if tokens:
                key = (id(drafter), trust)
                share = self._shares.get(key)
                if share is None:
                    share = self._shares[key] = Acceptance(trust)
                self._offered = (share, tokens)
                return Offer(tokens, share.share)
        return _NO_OFFER

    def learn(self, generated: Rows[int]) -> None:
        """Note the tokens of a call, and whether they were guessed."""
        self.said.extend(generated)
        if self._offered is not None:
            share, tokens = self._offered
            share.see(tokens, generated)
            self._offered = None

    def _switch_off(self, number: int, reason: str) -> None:
        log.warning("drafter.switched_off", drafter=type(self.drafters[number]).__name__, reason=reason)
        del self.drafters[number]
