"""The engine thread: schedule → decode → collect, for as long as the process lives.

Of one step, only sampling and planning lie between two decode calls. What was sampled is reported right before the next
call, which gives the interpreter away: text work happens while the next step computes.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf

from common.clock import NS_PER_S
from common.errors import PunaError, QueueFull
from common.spec.bands import Band
from common.spec.speculation import Speculation
from runner.core.grammar.token_grammar import NO_TOKEN
from runner.core.layout.layout import COPIES_BYTES_MAX
from runner.core.sequence.batching import (
    STREAMS_WAIT_S_MAX,
    UNKNOWN_COST,
    BatchPlan,
    BatchRow,
    TenantClocks,
    hold_streams,
    plan_batch,
)
from runner.core.sequence.context_shift import plan_context_shift
from runner.core.sequence.endings import CONTEXT_FULL, END_TOKEN, LENGTH, REPEATED_TOKENS_MAX
from runner.core.sequence.inputs import groups_in
from runner.core.sequence.preemption import BandsSeen, Contender, in_order, open_to_bands, victims
from runner.core.sequence.slots import SlotPolicy
from runner.core.speculation.drafters import Drafter
from runner.core.states.chain import Facts
from runner.core.threads.step_times import StepTimes
from runner.engine.batched.media_rows import MediaRows
from runner.engine.batched.sampling_pool import SamplingJob, SamplingPool
from runner.engine.batched.sequence import Sequence
from runner.engine.batched.slot_table import Slot, SlotTable
from runner.engine.batched.speculation import Speculator
from runner.engine.batched.state_keeper import StateKeeper
from runner.engine.contract.engine import (
    REPORT_INTERVAL_S,
    Ended,
    EngineListener,
    Failed,
    Freed,
    Paused,
    Progressed,
    Sampled,
    StepReport,
)
from runner.engine.contract.states import StateStore
from runner.engine.llama.batch import Batch
from runner.engine.llama.context import Context, DecodeResult
from runner.engine.llama.draft_model import DraftModel
from runner.engine.media.media_encoder import EncodingDone
from runner.engine.threads.engine_loop import IDLE_TEST_S, EngineLoop
from runner.engine.threads.spinning import ComputeThreads


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedOptions:
    """Options that are not part of the layout."""

    policy: SlotPolicy = SlotPolicy.BEST
    report_interval_s: float = REPORT_INTERVAL_S
    overlap: bool = True  # False: text work of a step is done before the next one is planned
    idle_test_s: float = IDLE_TEST_S  # between tests of idle devices
    verify: bool = False  # check the slots' bookkeeping against the engine's after every step
    repeats_max: int = REPEATED_TOKENS_MAX  # a sequence that says the same token more often ends; 0: never
    # Host RAM for copies: of states that cannot go back, else of prompts of idle slots.
    copies_bytes_max: int = COPIES_BYTES_MAX
    sampling_threads: int | None = None  # besides the engine's; None: one less than there are cores
    drafters: Callable[[Sequence], list[Drafter]] | None = None  # that each sequence asks before the usual ones
    drafted_tokens: int | None = None  # of each offer, whatever they cost; None: as many as pay
    states: StateStore | None = None  # outside this process; None: nothing outlives it
    state_facts: Facts = field(default_factory=dict)  # what decides beside model file and layout whether states fit


class Loop(EngineLoop):
    """Owns context and slots."""

    def __init__(  # noqa: PLR0913  # the parts of an engine that it puts to work
        self,
        context: Context,
        slots: SlotTable,
        listener: EngineListener,
        options: BatchedOptions,
        media: MediaRows | None,
        threads: ComputeThreads,
        times: StepTimes,
        pool: SamplingPool,
        *,
        batch_tokens: int,
        draft: DraftModel | None = None,
        no_draft: str = "",
    ) -> None:
        """`media`: None where the model sees no images. `batch_tokens`: most of one call. The rest: `Speculator`."""
        super().__init__(threads, times)
        self._context = context
        self._pool = pool
        self.media = media
        self.states: StateKeeper | None = None
        self._rows_turn = False  # the call that is planned or ran last holds rows of images, no tokens
        self._prompts_turn = False  # it leaves generating sequences out
        self._slots = slots
        self._listener = listener
        self._batch_tokens = batch_tokens
        self._options = options
        self._batch = Batch(capacity=context.batch_tokens, slots=context.slots)
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}
        self._clocks, self._bands = TenantClocks(), BandsSeen()
        self._speculator = Speculator(
            context,
            slots,
            more=options.drafters,
            forced_tokens=options.drafted_tokens,
            draft=draft,
            no_draft=no_draft,
        )
        self._report = StepReport()
        self._reported = (0, 0)  # busy and waiting as last reported
        self._slots_moved = True  # sequences got slots, or lost them, since the last report
        self._open_slots: tuple[int, ...] = ()
        self._sampling_ns = 0
        self._called_ns = 0  # when the last decode call began
        self._synced_ns = 0  # when the last call's results were there; 0: nothing ran since

    @property
    def speculation(self) -> Speculation:
        """Return the state of speculation as last reported."""
        return self._speculator.state

    def submit(self, sequence: Sequence) -> None:
        """Run a sequence."""
        self.post(partial(self._waiting.append, sequence))

    def cut(self, sequence_id: int, generated_tokens: int) -> None:
        """End a sequence and keep only so many of its generated tokens."""
        self.post(partial(self._cut, sequence_id, generated_tokens))

    def pause(self, sequence_id: int, paused: bool) -> None:
        """Leave a sequence out of the batches, or take it in again."""
        self.post(partial(self._pause, sequence_id, paused))

    def take_encoded(self, done: EncodingDone) -> None:
        """Take an image that has its rows, or will not get any."""
        self.post(partial(self._take_encoded, done))

    def _work(self) -> bool:
        self._admit()
        rows = self._plan()
        if rows:
            self._step(rows)
        else:
            self._synced_ns = 0
            self._tell()
        if self._slots.copy_slice():
            return True
        states = self.states
        if states is not None and states.work(running=bool(rows)):
            return True
        return self._slots.park_one(besides=None if states is None else states.holds) or bool(rows)

    def _test_idle(self) -> None:
        free = [slot for slot in self._slots.slots if slot.sequence is None]
        rules, slot = self._slots.rules, min(free, key=lambda one: len(one.held), default=None)
        if slot is None or (slot.held and (rules.window_tokens or not rules.erases_tail)):
            return  # the token could not be forgotten without a trace
        position = len(slot.held) - slot.excess
        self._batch.clear()
        self._batch.add(slot.id, position, [0], wants_logits=True)
        if self._context.decode(self._batch) == DecodeResult.DONE:
            self._context.synchronize()
            self._context.erase(slot.id, position)

    def forget(self, salt: str) -> None:
        """Drop what is held of a tenant; in the engine thread."""
        self._speculator.forget(salt)
        if self.states is not None:
            self.states.forget(salt)
        else:
            self._slots.forget(salt)

    def _drop_all(self) -> None:
        if self.states is not None:
            self.states.save_running()
        for sequence in [*self._running.values(), *self._waiting]:
            self._drop(sequence)
        self._tell()
        if self.states is not None:
            self.states.save_idle()

    def _cancel(self, request_id: int) -> None:
        if (found := self._find(request_id)) is not None:
            self._drop(found)

    def _pause(self, sequence_id: int, paused: bool) -> None:
        if (found := self._find(sequence_id)) is not None:
            found.paused = paused

    def _take_encoded(self, done: EncodingDone) -> None:
        assert self.media is not None
        self.media.store.take_in(done)
        self._report.images_encoded += done.encoded is not None
        self._report.encode_s += done.seconds

    def _find(self, sequence_id: int) -> Sequence | None:
        waiting = (sequence for sequence in self._waiting if sequence.id == sequence_id)
        return self._running.get(sequence_id) or next(waiting, None)

    def _drop(self, sequence: Sequence) -> None:
        """Free what a cancelled or failed sequence has."""
        if sequence.slot_id < 0:
            self._waiting.remove(sequence)
            self._slots.release(sequence)
            self._end(sequence)
        else:
            self._free(sequence, unheld_tokens=len(sequence.pending) if sequence.generating else 0)

    def _free(self, sequence: Sequence, *, unheld_tokens: int) -> None:
        """Give the slot back. `unheld_tokens` of the generated ones never reached the cache."""
        slot = self._slots.slots[sequence.slot_id]
        slot.generated_held = max(0, sequence.rules.generated - unheld_tokens)
        slot.sequence = None  # its content stays for the next prompt that begins the same
        del self._running[sequence.id]
        self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        """Report the end of a sequence without a slot."""
        self._slots_moved = True
        if sequence.images and self.media is not None:
            self.media.store.forget(sequence.request.prompt.images, sequence.id)
        sequence.sampler.close()
        self._speculator.ended(sequence)
        self._report.outcomes.append(Freed(sequence.id, sequence.times()))

    def _cut(self, sequence_id: int, generated_tokens: int) -> None:
        """Remove the tokens from a found stop string on from the cache. The sequence may have ended by itself."""
        sequence = self._find(sequence_id)
        if sequence is not None and sequence.slot_id < 0:
            self._drop(sequence)
        elif sequence is not None:
            self._free(sequence, unheld_tokens=len(sequence.pending))
        for slot in self._slots.slots:
            if slot.last_sequence_id == sequence_id and slot.sequence is None:
                excess = max(0, slot.generated_held - generated_tokens)
                self._slots.erase_tail(slot, max(0, len(slot.held) - excess))
                slot.generated_held -= excess

    def _admit(self) -> None:
        """Give waiting sequences slots, by band and age. Only its own band passes one whose state is being brought."""
        if not self._waiting:
            return
        now_ns, slots = time.monotonic_ns(), self._context.slots
        highest = min(sequence.request.band for sequence in self._waiting)
        if self._slots.busy >= slots and not victims(self._pausable(now_ns), band=highest):
            return  # as in most steps of a full context
        waiting = {sequence.id: sequence for sequence in self._waiting}
        shut: set[Band] = set()  # for which no running sequence can be paused
        lowest: int = Band.LOW  # that may begin: a lower one would delay what is being brought
        for contender in in_order([sequence.contender(now_ns) for sequence in self._waiting]):
            sequence = waiting[contender.sequence_id]
            full = self._slots.busy >= slots
            if full and (contender.band in shut or not victims(self._pausable(now_ns), band=contender.band)):
                shut.add(contender.band)
                continue
            if not self._slots.has_cells(sequence):
                if contender.rank == Band.HIGH:
                    return  # later ones would take the cells for which it waits
                continue
            if self.states is not None and self.states.awaits(sequence):
                lowest = min(lowest, contender.rank)
                continue
            if contender.rank > lowest:
                continue
            if not full or self._pause_one(contender.band):
                self._start(sequence)

    def _start(self, sequence: Sequence) -> None:
        """Give a waiting sequence a slot; one is free."""
        self._waiting.remove(sequence)
        now_ns, report = time.monotonic_ns(), self._report
        if sequence.pauses:
            report.returned += 1
            report.paused_s += (now_ns - sequence.waiting_ns) / NS_PER_S
        sequence.stamp_slot(now_ns=now_ns, sampling_ns=self._sampling_ns)
        reuse = sequence.request.cache_prompt or sequence.pauses > 0
        self._slots.park_one()  # what was not moved yet would be lost if this one takes its slot
        self._slots.take(sequence, reuse=reuse, saved=sequence.saved_state)
        if self.states is not None:
            self.states.restored(sequence)
        self._running[sequence.id] = sequence
        self._slots_moved = True
        if sequence.media_ahead and self.media is not None:
            self.media.begin(sequence)

    def _pausable(self, now_ns: int, *, besides: Sequence | None = None) -> list[Contender]:
        """List the running sequences that can lose their slots."""
        return [
            sequence.contender(now_ns)
            for sequence in self._running.values()
            if sequence is not besides and not sequence.keeps_slot
        ]

    def _pause_one(self, band: Band | None, *, besides: Sequence | None = None) -> bool:
        """Pause a sequence of a lower band, or of any if cells have run out; False if none can be."""
        now_ns = time.monotonic_ns()
        for contender in victims(self._pausable(now_ns, besides=besides), band=band):
            sequence = self._running[contender.sequence_id]
            # Images that are on their way are evaluated first.
            if not sequence.media_ahead and self._slots.pause(self._slots.slots[sequence.slot_id]):
                sequence.stamp_pause(now_ns=time.monotonic_ns(), sampling_ns=self._sampling_ns)
                del self._running[sequence.id]
                self._waiting.append(sequence)
                self._report.outcomes.append(Paused(sequence.id))
                self._slots_moved = True
                return True
        return False

    def _plan(self) -> tuple[BatchRow, ...]:
        """Rows of the next call; makes room in full contexts first."""
        while True:
            plan = self._plan_once()
            if not plan.full:
                self._slots.pass_over(plan)
                self._clocks.book(plan.rows)
                return plan.rows
            for slot_id in plan.full:
                self._make_room(self._slots.slots[slot_id])

    def _plan_once(self) -> BatchPlan:
        tokens: list[BatchRow] = []
        rows: list[BatchRow] = []
        now_ns = time.monotonic_ns()
        for slot in self._slots.slots:
            sequence = slot.sequence
            if sequence is not None and not sequence.paused and not self._slots.await_leader(slot, sequence):
                room = sequence.prepared.context_tokens - len(slot.held)
                if sequence.checkpoints and not self._slots.saves_behind:  # a chunk ends where the memory is saved
                    room = min(room, sequence.checkpoints[0] - len(slot.held))
                if sequence.media_ahead:
                    self._look_ahead(slot, sequence, room, tokens, rows, now_ns)
                else:
                    passed, tenant = sequence.passed_tokens, sequence.request.cache_salt
                    pending, generating = len(sequence.pending), sequence.generating
                    rank, waited_s = sequence.rank(now_ns), (now_ns - sequence.last_token_ns) / NS_PER_S
                    tokens.append(BatchRow(slot.id, pending, room, generating, (), passed, tenant, rank, waited_s))
        # A call holds tokens or rows. Where both wait they take turns.
        self._rows_turn = bool(rows) and not (tokens and self._rows_turn)
        self._clocks.start([*tokens, *rows])
        clocks = self._clocks.inputs
        if self._rows_turn:
            assert self.media is not None
            return plan_batch(rows, batch_tokens=self.media.rows_max, clocks=clocks)
        # Generating sequences alone are not chosen by what a call costs.
        cost = UNKNOWN_COST if all(row.generating for row in tokens) else self._times.cost()
        expected = self._bands.expected([one.request.band for one in self._running.values()], now_ns / NS_PER_S)
        one_comes = any(one.fetching for one in self._waiting)
        tokens, wait_s = hold_streams(tokens, cost=cost, expected_band=expected, one_comes=one_comes)
        turns = len({row.generating for row in tokens}) > 1 and self._times.take_turns()
        self._prompts_turn = turns and not self._prompts_turn
        if turns:
            tokens = [row for row in tokens if row.generating != self._prompts_turn]
            wait_s = wait_s or STREAMS_WAIT_S_MAX * self._prompts_turn
        plan = plan_batch(tokens, batch_tokens=self._batch_tokens, cost=cost, clocks=clocks, wait_s=wait_s)
        if not plan.full:
            self._speculator.prepare(plan.rows)
        return plan

    def _look_ahead(
        self, slot: Slot, sequence: Sequence, room: int, tokens: list[BatchRow], rows: list[BatchRow], now_ns: int
    ) -> None:
        """Collect the next inputs of a sequence with images ahead: tokens or rows."""
        assert self.media is not None
        if (error := self.media.store.failure(sequence.id)) is not None:
            self._fail(sequence, error)
        elif (demand := self.media.demand(slot, sequence, room)) is not None:
            demand = demand._replace(rank=sequence.rank(now_ns))
            (rows if sequence.pending[0] < 0 else tokens).append(demand)

    def _make_room(self, slot: Slot) -> None:
        sequence = slot.sequence
        assert sequence is not None
        if not sequence.request.shift:
            self._report.outcomes.append(Ended(sequence.id, CONTEXT_FULL))
            self._free(sequence, unheld_tokens=len(sequence.pending))
            return
        try:
            plan = plan_context_shift(
                held_tokens=len(slot.held),
                context_tokens=sequence.prepared.context_tokens,
                kept_tokens=sequence.prepared.kept_tokens,
                can_move=self._slots.rules.can_move,
                shared_tokens=self._slots.shared.shared_tokens(slot.id),
                groups=groups_in(slot.held) if sequence.images else (),
            )
        except PunaError as error:
            self._fail(sequence, error)
            return
        assert plan is not None, "a full context always has something to drop"
        self._slots.shift(slot, sequence, plan)
        # With inputs to compute again the sequence shares the batch like a prompt.
        sequence.generating = len(sequence.pending) == 1

    def _fail(self, sequence: Sequence, error: PunaError) -> None:
        self._report.outcomes.append(Failed(sequence.id, error))
        self._drop(sequence)

    def _step(self, planned: tuple[BatchRow, ...]) -> None:
        started_ns = time.monotonic_ns()
        rows, outputs = self._decode(planned, started_ns)
        if not rows:
            return
        self._context.synchronize()
        synced_ns = self._synced_ns = time.monotonic_ns()
        self._threads.look(synced_ns)
        report = self._report
        report.decode_calls += 1
        decode_s = (synced_ns - self._called_ns) / NS_PER_S
        inputs = self._inputs(rows)
        self._times.see(inputs, decode_s, prompt_inputs=sum([row.tokens for row in rows if not row.generating]))
        self._speculator.see_call(rows, inputs, decode_s)
        report.decode_s += decode_s
        report.batch_sequences = len(rows)
        report.lone_steps += self._slots.lone_step(rows, self._called_ns, synced_ns)
        if self._pool.threads and len(rows) > 1:
            self._choose_ahead(rows, outputs)
        for row, output in zip(rows, outputs, strict=True):
            self._collect(row, output, synced_ns)
        self._sampling_ns += time.monotonic_ns() - synced_ns
        if self._options.verify:
            self._slots.check()
        if not self._options.overlap or self._slots.copies_next or (self.states is not None and self.states.saving):
            self._tell()  # tokens do not wait for the copies
        self._slots.save_checkpoints()

    def _decode(self, rows: tuple[BatchRow, ...], started_ns: int) -> tuple[tuple[BatchRow, ...], list[int]]:
        """Run the rows, fewer if cells run out; return those that ran and where their logits are (-1: none)."""
        while rows:
            outputs = self._fill(rows, started_ns)
            self._tell(ahead_s=self._expect_call(self._inputs(rows)))
            self._called_ns = time.monotonic_ns()
            if self._synced_ns:
                self._report.gap_s += (self._called_ns - self._synced_ns) / NS_PER_S
                self._synced_ns = 0
            if self._call() == DecodeResult.DONE:
                return rows, outputs
            if self._speculator.withdraw(rows) or self._slots.evict_oldest_idle():
                continue
            if len(rows) == 1:
                (row,) = rows
                sequence = self._slots.slots[row.key].sequence
                assert sequence is not None
                if self._pause_one(None, besides=sequence):
                    continue
                self._fail(sequence, QueueFull("the cache has no free cell for this sequence"))
                return (), []
            newest = self._slots.newest(rows)
            rows = tuple(row for row in rows if row is not newest)
        return (), []

    def _inputs(self, rows: tuple[BatchRow, ...]) -> int:
        return sum([row.tokens for row in rows]) if self._rows_turn else self._batch.size

    def _call(self) -> int:
        if self._rows_turn:
            assert self.media is not None
            return self.media.decode()
        return self._context.decode(self._batch)

    def _fill(self, rows: tuple[BatchRow, ...], started_ns: int) -> list[int]:
        batch = self._batch
        batch.clear()
        media = self.media if self._rows_turn else None
        if media is not None:
            media.batch.clear()
        outputs = []
        for row in rows:
            slot = self._slots.slots[row.key]
            sequence = slot.sequence
            assert sequence is not None
            if not sequence.first_batch_ns:
                sequence.first_batch_ns = started_ns
            if media is not None:
                place = media.add(slot, sequence, row)
            else:
                tokens = sequence.pending if row.complete else sequence.pending[: row.tokens]
                drafted = len(sequence.draft)
                if drafted:
                    tokens = tokens + sequence.draft
                position = len(slot.held) - slot.excess
                place = batch.add(slot.id, position, tokens, wants_logits=row.complete, drafted=drafted)
            outputs.append(place if row.complete else -1)
        return outputs

    def _choose_ahead(self, rows: tuple[BatchRow, ...], outputs: list[int]) -> None:
        """Let several cores make the choices that take long."""
        wanted = []
        for row, output in zip(rows, outputs, strict=True):
            sequence = self._slots.slots[row.key].sequence
            assert sequence is not None
            # Of log-probabilities a copy is taken before the choice changes the logits.
            raw = sequence.request.top_logprobs is not None
            if sequence.sampler.cost >= self._pool.cost_min and output >= 0 and not (raw or sequence.rules.exhausted):
                wanted.append(SamplingJob(sequence.sampler, output, sequence.rules.generated))
        self._pool.choose_ahead(wanted)

    def _collect(self, row: BatchRow, output: int, synced_ns: int) -> None:
        """Book what was evaluated, and sample where logits were wanted."""
        slot = self._slots.slots[row.key]
        sequence = slot.sequence
        assert sequence is not None
        slot.held += sequence.pending[: row.tokens]
        del sequence.pending[: row.tokens]
        if sequence.media_ahead and self.media is not None:
            self.media.book(slot, sequence, row.tokens)
        if not sequence.generating:
            self._note_prompt(slot, sequence, row)
        if output < 0:
            return
        if sequence.rules.exhausted:
            self._report.outcomes.append(Ended(sequence.id, LENGTH))
            self._free(sequence, unheld_tokens=0)
            return
        self._sample_all(slot, sequence, output, synced_ns)

    def _sample_all(self, slot: Slot, sequence: Sequence, output: int, synced_ns: int) -> None:
        """Choose the next token, and one behind each drafted token that was right."""
        draft, sequence.draft = sequence.draft, []
        generated: list[int] = []
        for place, guess in enumerate([*draft, NO_TOKEN], start=output):
            token_id = self._sample(sequence, place, synced_ns)
            if token_id != NO_TOKEN:
                generated.append(token_id)
            if token_id != guess or not sequence.pending:
                break
            slot.held += sequence.pending
            sequence.pending.clear()
        self._speculator.book(slot, sequence, generated, len(draft))

    def _note_prompt(self, slot: Slot, sequence: Sequence, row: BatchRow) -> None:
        """Report the progress of a prompt, and save its memory where that is planned."""
        self._report.prompt_tokens += row.tokens
        if not sequence.first_token_ns:
            total = len(sequence.prepared.inputs)
            done = total - len(sequence.pending)
            self._report.outcomes.append(Progressed(sequence.id, done, total, sequence.cached_prompt_tokens))
        while sequence.checkpoints and sequence.checkpoints[0] <= len(slot.held):
            self._slots.checkpoints_due.append((slot, sequence.checkpoints[0]))
            sequence.checkpoints = sequence.checkpoints[1:]

    def _sample(self, sequence: Sequence, place: int, synced_ns: int) -> int:
        """Choose a token, report it, and make it pending unless it is the last; NO_TOKEN: the answer had ended."""
        report = self._report
        logits = self._context.logits(place).copy() if sequence.request.top_logprobs is not None else None
        report.has_logits |= logits is not None
        try:
            token_id = self._pool.sample(SamplingJob(sequence.sampler, place, sequence.rules.generated))
        except PunaError as error:
            self._fail(sequence, error)
            return NO_TOKEN
        if token_id == NO_TOKEN:
            report.outcomes.append(Ended(sequence.id, END_TOKEN))
            self._free(sequence, unheld_tokens=0)
            return NO_TOKEN
        sequence.stamp_token(synced_ns=synced_ns, sampling_ns=self._sampling_ns)
        ending = sequence.rules.count(token_id)
        report.generated_tokens += 1
        report.outcomes.append(Sampled(sequence.id, token_id, logits, ending))
        if ending is None:
            sequence.pending.append(token_id)
            sequence.generating = True
            sequence.passed_tokens = 0
        else:
            self._free(sequence, unheld_tokens=1)
        return token_id

    def _tell(self, *, ahead_s: float = inf) -> None:
        """Report what happened, if anything did, unless it can wait for what a call of `ahead_s` brings."""
        report = self._report
        if not self._slots_moved and report.can_wait(ahead_s, interval_s=self._options.report_interval_s):
            return
        report.slots_busy, report.waiting = self._slots.busy, len(self._waiting)
        now = (report.slots_busy, report.waiting)
        if self._slots_moved or now != self._reported:
            self._slots_moved, now_ns = False, time.monotonic_ns()
            waiting = [sequence.contender(now_ns) for sequence in self._waiting]
            self._open_slots = open_to_bands(self._pausable(now_ns), waiting)
        report.open_slots = self._open_slots
        if report.outcomes or now != self._reported or self._slots.has_parked:
            self._slots.tell(report)
            self._speculator.tell(report)
            report.cost = self._times.cost()
            self._reported = now
            self._report = StepReport()
            self._listener.stepped(report)
