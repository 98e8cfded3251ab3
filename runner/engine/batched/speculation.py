"""Drafted tokens of the engine's sequences: asked for, chosen, evaluated, and taken back where they were wrong.

Only the sampler decides: a drafted token stays where the sampler's own draw from its logits is that token, with the
seed of its position, penalties and grammar as ever. What remains is rounding: llama.cpp computes several inputs with
other kernels than one (measured: F16 weights; attention over 512 cells and more; routers of experts), for drafts as for
inputs of several sequences or of a prompt.
"""

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import replace

from common.clock import MS_PER_S
from common.spec.layout import DRAFTED_TOKENS_MAX
from common.spec.speculation import Speculation
from runner.core.sequence.batching import BatchRow
from runner.core.speculation.control import (
    SEQUENCES_MAX,
    CallTimes,
    Offer,
    choose_drafts,
    paying_share,
)
from runner.core.speculation.drafters import AnswerPool, Drafter, ForcedTextDrafter, NgramDrafter, NgramIndex
from runner.core.threads.step_times import StepTimes
from runner.engine.batched.drafts import Drafts
from runner.engine.batched.sequence import Sequence
from runner.engine.batched.slot_table import Slot, SlotTable
from runner.engine.contract.engine import StepReport
from runner.engine.llama.context import Context

NO_WAY_BACK = "the model has a recurrent state, which cannot go back behind a wrong guess"


class Speculator:
    """Chooses the drafts of every call. Only the engine thread may use it."""

    def __init__(
        self,
        context: Context,
        slots: SlotTable,
        times: StepTimes,
        *,
        more: Callable[[Sequence], list[Drafter]] | None = None,
        forced_tokens: int | None = None,
    ) -> None:
        """`more` drafters are asked first; `forced_tokens` of each offer are evaluated, whatever it costs."""
        self._context = context
        self._slots = slots
        self._times = times
        self._more = more
        self._forced = forced_tokens
        self._pool = AnswerPool()
        self.calls = CallTimes()
        self._inputs_max = min(context.ubatch_tokens, context.outputs_max)
        self._drafted = self._accepted = self._off = 0  # since the last report
        # A state that cannot go back would have to be copied before each call, and computed again after wrong guesses.
        self.state = Speculation(off_reason="" if slots.rules.erases_tail else NO_WAY_BACK)
        self._has_ended = False  # a sequence, since the last report

    def prepare(self, rows: Rows[BatchRow]) -> None:
        """Set the drafts of the sequences of a call.

        Calls with prompts get none, nor do calls of many sequences, or of several in caches of their own: llama.cpp
        would compute their unequal rows one after the other.
        """
        if (
            self.state.off_reason
            or not 0 < len(rows) <= SEQUENCES_MAX
            or (len(rows) > 1 and not self._context.shares_cells)
        ):
            return
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
            known = len(sequence.drafts.drafters)
            offers.append(sequence.drafts.offer(min(DRAFTED_TOKENS_MAX, row.room_tokens - 1, sequence.rules.left - 1)))
            self._off += known - len(sequence.drafts.drafters)
        counts = self._choose(offers)
        if any(counts):
            for sequence, offer, count in zip(sequences, offers, counts, strict=True):
                sequence.draft = list(offer.tokens[:count])

    def see_call(self, rows: Rows[BatchRow], inputs: int, seconds: float) -> None:
        """Learn from the duration of a call."""
        if not self.state.off_reason and len(rows) <= SEQUENCES_MAX:
            self.calls.see(inputs, seconds)

    def withdraw(self, rows: Rows[BatchRow]) -> bool:
        """Take the drafts out of a call that found no cells; False if it has none."""
        found = False
        for row in rows:
            sequence = self._slots.slots[row.key].sequence
            if sequence is not None and sequence.draft:
                sequence.draft = []
                found = True
        return found

    def book(self, slot: Slot, sequence: Sequence, generated: Rows[int], drafted: int) -> None:
        """Count the drafts of a call and take back what was wrong of them; `slot` holds what was right."""
        if sequence.drafts is not None:
            sequence.drafts.learn(generated)
        if drafted:
            accepted = len(generated) - 1 if generated else 0
            self._drafted += drafted
            self._accepted += accepted
            if accepted < drafted:
                erased = self._slots.drop_beyond(slot)
                assert erased, "only memory that goes back is given drafts"

    def ended(self, sequence: Sequence) -> None:
        """Keep an answer for those that come."""
        self._has_ended = True
        drafts = sequence.drafts
        if drafts is not None and sequence.request.cache_prompt:
            self._pool.add(sequence.request.cache_salt, drafts.said[drafts.answer_start :])

    def tell(self, report: StepReport) -> None:
        """Add the counts since the last report, and after the end of a sequence the figures that decide."""
        report.drafted_tokens, report.accepted_tokens, report.drafters_off = self._drafted, self._accepted, self._off
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
        share = paying_share(seconds=seconds, inputs_max=self._inputs_max)
        return replace(self.state, call_ms=seconds(1) * MS_PER_S, paying_share=share)

    def _seconds(self, *, alike: int) -> Callable[[int], float]:
        """Return the durations of calls by their inputs; where none was seen, as that of `alike` inputs suggests."""
        line = self._times.cost()
        return lambda inputs: self.calls.seconds(inputs, like=alike, line=line)

    def _choose(self, offers: list[Offer]) -> tuple[int, ...]:
        if self._forced is not None:
            room = (self._inputs_max - len(offers)) // len(offers)
            return tuple([min(self._forced, room, len(offer.tokens)) for offer in offers])
        if not all(offer.tokens for offer in offers):
            return (0,) * len(offers)
        return choose_drafts(offers, seconds=self._seconds(alike=len(offers)), inputs_max=self._inputs_max)

    def _drafts(self, slot: Slot, sequence: Sequence) -> Drafts:
        said = [*slot.held, *sequence.pending]
        drafters = self._more(sequence) if self._more is not None else []
        if sequence.grammar is not None:
            drafters.append(ForcedTextDrafter(said, sequence.grammar))
        drafters.append(NgramDrafter(said, NgramIndex(said)))
        if sequence.request.cache_prompt:
            drafters.append(NgramDrafter(said, self._pool.index(sequence.request.cache_salt)))
        return Drafts(said, drafters, answer_start=len(said) - sequence.rules.generated)
