"""The drafters of one sequence, and how often each of them is right."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from common.clock import NS_PER_S
from common.telemetry.logs import get_logger
from runner.core.speculation.control import Acceptance, Experience, Offer
from runner.core.speculation.drafters import CostlyDrafter, Drafter

log = get_logger()

# A drafter that takes longer once is not asked again by that sequence.
DRAFT_NS_MAX = 20_000_000
# For one that computes: so many times what its guesses take, beside what it reads in one call.
STALL_FACTOR = 8
STALL_S_MIN = 0.5
_NO_OFFER = Offer((), 0.0)
# How many tokens a drafter should guess, by the share of right ones and the time of one.
Length = Callable[[float, float], int]


@dataclass(slots=True)
class Drafts:
    """Drafts of one sequence. Lives as long as it generates."""

    said: list[int]  # inputs and generated tokens
    drafters: list[Drafter]
    answer_start: int = 0  # in `said`
    experience: Experience = field(default_factory=Experience)  # of other sequences, too
    model: CostlyDrafter | None = None  # is asked where it is expected to be right more often
    by_model: bool = False  # the last offer was the model's
    off: int = 0  # drafters that were switched off
    _shares: dict[tuple[int, int], Acceptance] = field(default_factory=dict)  # by drafter and trust
    _offered: list[tuple[Drafter, int, Rows[int]]] = field(default_factory=list)  # with the trust in each

    def offer(self, limit: int, length: Length) -> Offer:
        """Return the guess of the first drafter that has one, or that of the model if it is likelier to be right."""
        self._offered = []
        self.by_model = False
        found = self._first(limit)
        model = self.model
        if model is None:
            return found
        known = self._share(model, model.trust)
        if found.tokens and found.share >= known.share:
            return found
        tokens = self._of_model(model, min(limit, length(known.hoped, model.token_s)))
        if not tokens:
            return found
        self.by_model = True
        self._offered.append((model, model.trust, tokens))
        return Offer(tokens, known.share)

    def _first(self, limit: int) -> Offer:
        for number, drafter in enumerate(self.drafters):
            began_ns = time.thread_time_ns()
            try:
                tokens = drafter.draft(limit)
                trust = drafter.trust
            except Exception as error:  # noqa: BLE001  # the answer goes on without it
                self._switch_off(drafter, repr(error))
                del self.drafters[number]
                return _NO_OFFER
            if time.thread_time_ns() - began_ns > DRAFT_NS_MAX:
                self._switch_off(drafter, "too slow")
                del self.drafters[number]
                return _NO_OFFER
            if tokens:
                self._offered.append((drafter, trust, tokens))
                return Offer(tokens, self._share(drafter, trust).share)
        return _NO_OFFER

    def _of_model(self, model: CostlyDrafter, count: int) -> Rows[int]:
        if count < 1:
            return ()
        began_ns = time.monotonic_ns()
        allowed_s = max(STALL_S_MIN, STALL_FACTOR * count * model.token_s)
        try:
            tokens = model.draft(count)
        except Exception as error:  # noqa: BLE001  # the answer goes on without it
            self._switch_off(model, repr(error))
            self.model = None
            return ()
        if time.monotonic_ns() - began_ns > allowed_s * NS_PER_S:
            self._switch_off(model, "too slow")
            self.model = None
        return tokens

    def learn(self, generated: Rows[int]) -> None:
        """Note the tokens of a call, and whether they were guessed."""
        self.said.extend(generated)
        for drafter, trust, tokens in self._offered:
            self._share(drafter, trust).see(tokens, generated)
            self.experience.of(type(drafter), trust).see(tokens, generated)
        self._offered = []

    def _share(self, drafter: Drafter, trust: int) -> Acceptance:
        key = (id(drafter), trust)
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = Acceptance(self.experience.of(type(drafter), trust).share)
        return share

    def _switch_off(self, drafter: Drafter, reason: str) -> None:
        log.warning("drafter.switched_off", drafter=type(drafter).__name__, reason=reason)
        self.off += 1
