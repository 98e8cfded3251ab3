"""Drafted tokens of the engine's sequences: asked for, chosen, evaluated, and taken back where they were wrong.

Only the sampler decides: a drafted token stays where the sampler's own draw from its logits is that token, with the
seed of its position, penalties and grammar as ever. What remains is rounding: llama.cpp computes several inputs with
other kernels than one (measured: F16 weights; attention over 512 cells and more; routers of experts), for drafts as for
inputs of several sequences or of a prompt.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import replace
from functools import partial

from common.clock import MS_PER_S, NS_PER_S
from common.spec.layout import DRAFTED_TOKENS_MAX
from common.spec.speculation import Speculation
from runner.core.sequence.batching import BatchRow
from runner.core.speculation.control import (
    EARNED,
    SEQUENCES_MAX,
    Allowance,
    CallTimes,
    Experience,
    Offer,
    choose_drafts,
    choose_length,
    paying_share,
)
from runner.core.speculation.drafters import AnswerPool, Drafter, ForcedTextDrafter, NgramDrafter, NgramIndex
from runner.engine.batched.drafts import Drafts
from runner.engine.batched.model_drafter import ModelDrafter
from runner.engine.batched.sequence import Sequence
from runner.engine.batched.slot_table import Slot, SlotTable
from runner.engine.contract.engine import StepReport
from runner.engine.llama.context import Context
from runner.engine.llama.draft_model import DraftModel

NO_WAY_BACK = (
    "the model has a recurrent state, which goes back behind wrong guesses only with the constraint rollback_tokens, "
    "and only if its architecture can"
)


class Speculator:
    """Chooses the drafts of every call. Only the engine thread may use it."""

    def __init__(
        self,
        context: Context,
        slots: SlotTable,
        *,
        more: Callable[[Sequence], list[Drafter]] | None = None,
        forced_tokens: int | None = None,
        draft: DraftModel | None = None,
        no_draft: str = "",
    ) -> None:
        """`more` drafters are asked first; `forced_tokens` of each offer are evaluated, whatever it costs.

        `draft` guesses where that pays; `no_draft` is the reason why the layout's draft model is not used.
        """
        self._model = draft
        self._context = context
        self._slots = slots
        self._more = more
        self._forced = forced_tokens
        self._pool = AnswerPool()
        self._experience = Experience()
        self.calls = CallTimes()
        self._allowance = Allowance()
        self._drafted_rows = 0  # of the call, if one of them has a draft
        rules = slots.rules
        self._sequence_max = DRAFTED_TOKENS_MAX if rules.erases_tail else rules.rollback_tokens  # drafted tokens of one
        self._inputs_max = min(context.ubatch_tokens, context.outputs_max)
        self._drafted = self._accepted = self._off = 0  # since the last report, as the two below
        self._drafted_by_model = self._accepted_by_model = 0
        self.state = Speculation(
            off_reason="" if self._sequence_max else NO_WAY_BACK,
            draft_ms=draft.token_s * MS_PER_S if draft is not None else 0.0,
            draft_off_reason=no_draft,
        )
        self._has_ended = False  # a sequence, since the last report

    def prepare(self, rows: Rows[BatchRow]) -> None:
        """Set the drafts of the sequences of a call.

        Calls with prompts get none, nor do calls of many sequences, or of several in caches of their own: llama.cpp
        would compute their unequal rows one after the other. Drafters are asked as often as the time for it is earned.
        """
        self._drafted_rows = 0
        if (
            self.state.off_reason
            or not 0 < len(rows) <= SEQUENCES_MAX
            or (len(rows) > 1 and not self._context.shares_cells)
            or not (self._forced is not None or self._allowance.has_some)
        ):
            return
        began_ns = time.monotonic_ns()
        self._set_drafts(rows)
        alone_s = self.calls.seconds(len(rows), like=len(rows))
        if alone_s:
            self._allowance.earn(-(time.monotonic_ns() - began_ns) / NS_PER_S / alone_s)

    def _set_drafts(self, rows: Rows[BatchRow]) -> None:
        offers, sequences = [], []
        for row in rows:
            slot = self._slots.slots[row.key]
            sequence = slot.sequence
            assert sequence is not None
            sequences.append(sequence)
            if not sequence.generating or not sequence.request.speculates:
                return
            if sequence.drafts is None:
                sequence.drafts = self._drafts(slot, sequence)
            most = min(sequence.request.speculative_tokens, self._sequence_max)
            limit = min(most, row.room_tokens - 1, sequence.rules.left - 1)
            before = sequence.drafts.off
            offers.append(sequence.drafts.offer(limit, partial(self._length, len(rows))))
            self._off += sequence.drafts.off - before
        counts = self._choose(offers)
        if any(counts):
            self._drafted_rows = len(rows)
            for sequence, offer, count in zip(sequences, offers, counts, strict=True):
                sequence.draft = list(offer.tokens[:count])

    def see_call(self, rows: Rows[BatchRow], inputs: int, seconds: float) -> None:
        """Learn from the duration of a call."""
        if not self.state.off_reason and len(rows) <= SEQUENCES_MAX:
            self.calls.see(inputs, seconds)
            self._allowance.earn(EARNED)
            if self._drafted_rows and (alone_s := self.calls.seconds(len(rows), like=len(rows))):
                self._allowance.earn(1.0 - self.calls.seconds(inputs, like=len(rows)) / alone_s)

    def withdraw(self, rows: Rows[BatchRow]) -> bool:
        """Take the drafts out of a call that found no cells; False if it has none."""
        found = False
        for row in rows:
            sequence = self._slots.slots[row.key].sequence
            if sequence is not None and sequence.draft:
                sequence.draft = []
                found = True
        self._drafted_rows = 0
        return found

    def book(self, slot: Slot, sequence: Sequence, generated: Rows[int], drafted: int) -> None:
        """Count the drafts of a call and take back what was wrong of them; `slot` holds what was right."""
        if sequence.drafts is not None:
            sequence.drafts.learn(generated)
        if drafted:
            accepted = len(generated) - 1 if generated else 0
            self._drafted += drafted
            self._accepted += accepted
            self._allowance.earn(accepted / max(1, self._drafted_rows))
            if sequence.drafts is not None and sequence.drafts.by_model:
                self._drafted_by_model += drafted
                self._accepted_by_model += accepted
            if accepted < drafted:
                erased = self._slots.drop_beyond(slot)
                assert erased, "only memory that goes back is given drafts"

    def ended(self, sequence: Sequence) -> None:
        """Keep an answer for those that come."""
        self._has_ended = True
        drafts = sequence.drafts
        if drafts is not None and sequence.request.cache_prompt:
            self._pool.add(sequence.request.cache_salt, drafts.said[drafts.answer_start :])

    def forget(self, salt: str) -> None:
        """Erase what the draft model holds of a tenant."""
        if self._model is not None:
            self._model.forget(salt)

    def tell(self, report: StepReport) -> None:
        """Add the counts since the last report, and after the end of a sequence the figures that decide."""
        report.drafted_tokens, report.accepted_tokens, report.drafters_off = self._drafted, self._accepted, self._off
        report.drafted_by_model, report.accepted_by_model = self._drafted_by_model, self._accepted_by_model
        self._drafted_by_model = self._accepted_by_model = 0
        if self._drafted or self._off:
            before = self.state
            self.state = replace(
                before,
                drafted_tokens=before.drafted_tokens + self._drafted,
                accepted_tokens=before.accepted_tokens + self._accepted,
                drafters_off=before.drafters_off + self._off,
            )
            self._drafted = self._accepted = self._off = 0
        if self._has_ended:
            self._has_ended = False
            self.state = report.speculation = self._with_figures()

    def _with_figures(self) -> Speculation:
        seconds = self._seconds(alike=1)
        if self.state.off_reason or not seconds(1) or not seconds(2):
            return self.state
        share = paying_share(seconds=seconds, inputs_max=min(self._inputs_max, 1 + self._sequence_max))
        return replace(self.state, call_ms=seconds(1) * MS_PER_S, paying_share=share)

    def _seconds(self, *, alike: int) -> Callable[[int], float]:
        """Return the durations of calls by their inputs; where none was seen, as that of `alike` inputs suggests."""
        return lambda inputs: self.calls.seconds(inputs, like=alike)

    def _length(self, sequences: int, share: float, token_s: float) -> int:
        if self._forced is not None:
            return self._forced
        return choose_length(
            share,
            sequences=sequences,
            token_s=token_s,
            seconds=self._seconds(alike=sequences),
            inputs_max=self._inputs_max,
        )

    def _choose(self, offers: list[Offer]) -> tuple[int, ...]:
        if self._forced is not None:
            room = (self._inputs_max - len(offers)) // len(offers)
            return tuple([min(self._forced, room, len(offer.tokens)) for offer in offers])
        if not all(offer.tokens for offer in offers):
            return (0,) * len(offers)
        return choose_drafts(
            offers,
            seconds=self._seconds(alike=len(offers)),
            inputs_max=self._inputs_max,
            lost_calls_max=self._allowance.calls,
        )

    def _drafts(self, slot: Slot, sequence: Sequence) -> Drafts:
        said = [*slot.held, *sequence.pending]
        drafters = self._more(sequence) if self._more is not None else []
        if sequence.grammar is not None:
            drafters.append(ForcedTextDrafter(said, sequence.grammar))
        drafters.append(NgramDrafter(said, NgramIndex(said)))
        if sequence.request.cache_prompt:
            drafters.append(NgramDrafter(said, self._pool.index(sequence.request.cache_salt)))
        guesser = None
        if self._model is not None and not sequence.images:
            salt = sequence.request.cache_salt if sequence.request.cache_prompt else None
            guesser = ModelDrafter(said, self._model, slot.id, salt=salt)
        answer_start = len(said) - sequence.rules.generated
        return Drafts(said, drafters, answer_start=answer_start, experience=self._experience, model=guesser)
