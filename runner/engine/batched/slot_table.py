"""The slots of a context and their contents. Applies the core's decisions to llama.cpp's memory."""

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from common.telemetry.logs import get_logger
from runner.core.sequence.batching import UNKNOWN_COST, BatchPlan, BatchRow, CallCost
from runner.core.sequence.checkpoints import best_checkpoint, plan_checkpoints
from runner.core.sequence.context_shift import ContextShift
from runner.core.sequence.decode_windows import LoneStep
from runner.core.sequence.inputs import excess_rows, holds_media, whole_units
from runner.core.sequence.sequence_names import SequenceNames
from runner.core.sequence.slots import (
    MemoryRules,
    PromptView,
    SharedCells,
    SlotChoice,
    SlotPolicy,
    SlotView,
    choose_leader,
    choose_slot,
    resume_point,
)
from runner.core.states.gate import CopySpeed
from runner.engine.batched.checkpoint_store import CheckpointStore
from runner.engine.batched.parking import IDLE_CELLS_MAX, Guest, ParkedPrompt, ParkingLot, SlotContent
from runner.engine.batched.sequence import Sequence
from runner.engine.contract.engine import StepReport
from runner.engine.contract.states import SavedState
from runner.engine.llama.context import Context

log = get_logger()


@dataclass(slots=True, kw_only=True)
class Slot:
    """One KV sequence of the context. `held` are the inputs in its cells, in order."""

    id: int
    held: list[int] = field(default_factory=list)
    sequence: Sequence | None = None
    last_used: int = 0
    last_sequence_id: int = -1  # whose tokens the end of `held` is, also after it ended
    generated_held: int = 0  # how many of them were generated, once it ended
    excess: int = 0  # by how many `held` outnumbers its positions; only images take fewer positions than rows
    shifted: bool = False  # it does not begin as its last prompt did
    parks: bool = True  # False: what it holds is too large to be moved out of the cache
    salt: str = ""  # of the last request
    names: SequenceNames | None = None  # of the beginnings of the last request
    saved_tokens: int = 0  # of the inputs held, how many a state outside this process has
    saved: tuple[str, int] = ("", 0)  # that state's key, and its inputs
    kept_tokens: int = 0  # the fewest inputs held since the copy of its state began
    forgotten: bool = False  # its tenant wants nothing kept; until the next sequence


class SlotTable:
    """Owns the slots. Only the engine thread may use it."""

    def __init__(
        self,
        context: Context,
        *,
        policy: SlotPolicy,
        rules: MemoryRules,
        copies_bytes_max: int = 0,
        cost: Callable[[], CallCost] = lambda: UNKNOWN_COST,
    ) -> None:
        """Checkpoints are taken only of memory that cannot go back; they and parked prompts share the bytes.

        `cost` is of computing, as measured so far.
        """
        goes_back = rules.erases_tail and rules.window_tokens == 0
        parks = policy is SlotPolicy.BEST  # the other policy never copies a prefix
        self.checkpoints = CheckpointStore(context, bytes_max=0 if goes_back else copies_bytes_max)
        self.copies = CopySpeed()
        self.shared = SharedCells()
        self._parking = ParkingLot(
            context,
            self.checkpoints,
            self.copies,
            cost,
            bytes_max=copies_bytes_max if parks else 0,
            recurrent=not rules.erases_tail,
            shared=self.shared,
        )
        self._context = context
        self._policy = policy
        self.rules = rules
        self._goes_back = goes_back
        self._uses = 0
        self.checkpoints_due: list[tuple[Slot, int]] = []  # that the last call has reached, after so many inputs
        self.has_parked = False  # since the last report of held prompts
        self.slots = [Slot(id=slot_id) for slot_id in range(context.slots)]

    @property
    def busy(self) -> int:
        """Return the number of slots that serve a sequence."""
        return sum(slot.sequence is not None for slot in self.slots)

    @property
    def held_inputs(self) -> int:
        """Return the number of inputs that all slots hold together."""
        return sum(len(slot.held) for slot in self.slots)

    def tell(self, report: StepReport) -> None:
        """Add the held inputs and their owners to a report."""
        report.held_inputs = self.held_inputs
        report.holders = tuple(slot.last_sequence_id for slot in self.slots if slot.held and not slot.shifted)
        report.parked = self._parking.holders
        self.has_parked = False

    def lone_step(self, rows: Rows[BatchRow], began_ns: int, ended_ns: int) -> tuple[LoneStep, ...]:
        """Return a call that held one generated token of one sequence, before it is booked; else nothing."""
        if len(rows) != 1 or rows[0].tokens != 1:
            return ()
        slot = self.slots[rows[0].key]
        if slot.sequence is None or not slot.sequence.generating or slot.sequence.draft:
            return ()
        # Where all share the cells, a step goes over those of the others, too.
        held = self.held_inputs if self._context.shares_cells else len(slot.held)
        return (LoneStep(began_ns, ended_ns, min(held + 1, self._context.cells)),)

    def pass_over(self, plan: BatchPlan) -> None:
        """Count what overtakes the sequences that a call leaves out; a prompt is not overtaken by earlier ones."""
        running = [(row, self.slots[row.key].sequence) for row in plan.rows] if plan.left_out else []
        for slot_id in plan.left_out:
            left_out = self.slots[slot_id].sequence
            assert left_out is not None, "an idle slot"
            left_out.passed_tokens += sum(
                row.tokens
                for row, sequence in running
                if left_out.generating or (sequence and sequence.id > left_out.id and not row.generating)
            )

    def newest(self, rows: Rows[BatchRow]) -> BatchRow:
        """Return the row to leave out first when cells run out: the newest prompt, else the newest sequence."""

        def age(row: BatchRow) -> tuple[bool, int]:
            sequence = self.slots[row.key].sequence
            assert sequence is not None
            return not sequence.generating, sequence.id

        return max(rows, key=age)

    def prefix_tokens(self, sequence: Sequence) -> int:
        """Return how many inputs of a new sequence need not be computed, by what this process holds."""
        inputs, salt = sequence.inputs, sequence.request.cache_salt
        return max(resume_point(view, inputs, self.rules, salt=salt).tokens for view in self._views())

    def take(self, sequence: Sequence, *, reuse: bool, saved: SavedState | None = None) -> Slot:
        """Give a sequence the slot that the policy chooses and set what is still to be computed. One is free.

        `saved` is a state from outside that it may begin with.
        """
        if saved is None:
            return self._take(sequence, reuse=reuse)
        guest = self._parking.admit(saved, salt=sequence.request.cache_salt)
        try:
            return self._take(sequence, reuse=reuse, guest=guest)
        finally:
            self._parking.dismiss(guest)

    def _take(self, sequence: Sequence, *, reuse: bool, guest: Guest | None = None) -> Slot:
        inputs, salt = sequence.inputs, sequence.request.cache_salt
        while sequence.pauses and self._lacks_cells(self.held_inputs, sequence) and self.evict_oldest_idle():
            pass
        choice = choose_slot(
            self._views(sequence), inputs, policy=self._policy, rules=self.rules, reuse=reuse, salt=salt
        )
        assert choice is not None, "a slot is free"
        slot = self.slots[choice.slot_id]
        assert slot.sequence is None, "a busy slot was chosen"
        slot.sequence = sequence
        self._uses += 1
        slot.last_used = self._uses
        slot.last_sequence_id, slot.salt = sequence.id, salt
        slot.names = sequence.names
        slot.generated_held = 0
        slot.parks, slot.shifted, slot.forgotten = True, sequence.shifted, sequence.forgotten
        sequence.slot_id = slot.id
        self._fill(slot, sequence, choice)
        self._parking.release(sequence)
        if guest is not None and choice.source_id == guest.id:
            slot.saved_tokens = min(guest.tokens, len(slot.held))
            slot.saved = guest.key, guest.tokens
        if reuse and self.rules.erases_tail:
            older = self._prompts_in_progress(besides=sequence)
            sequence.leader = choose_leader(inputs, held_tokens=len(slot.held), older=older, salt=salt)
        return slot

    def has_cells(self, sequence: Sequence) -> bool:
        """Return True if a paused sequence finds cells for all that it had, once idle slots gave theirs."""
        taken = sum(len(slot.held) for slot in self.slots if slot.sequence is not None)
        return not (sequence.pauses and taken and self._lacks_cells(taken, sequence))

    def _lacks_cells(self, taken: int, sequence: Sequence) -> bool:
        return self._context.shares_cells and taken + len(sequence.inputs) > self._context.cells

    def pause(self, slot: Slot) -> bool:
        """Take a slot from its sequence, whose state is copied to host RAM; False if that cannot be copied now.

        The sequence gets a slot again like any other: the copy is the longest beginning of its inputs.
        """
        sequence = slot.sequence
        assert sequence is not None, "an idle slot"
        if slot.held and not self._parking.hold(slot.id, self._content(slot), sequence):
            return False
        sequence.inputs = slot.held + sequence.pending
        if not sequence.first_token_ns:
            sequence.computed_tokens = len(slot.held) - sequence.cached_tokens
        sequence.leader, sequence.slot_id = None, -1
        sequence.shifted, sequence.forgotten = slot.shifted, slot.forgotten
        slot.sequence = None  # what it holds may serve whatever is next in it
        log.info("slot.paused", slot=slot.id, tokens=len(slot.held), band=sequence.request.band.name.lower())
        return True

    def gives_slices(self, slot: Slot) -> bool:
        """Return True if the state of a slot can be copied in slices."""
        return self._context.gives_slices and self._goes_back and not slot.excess

    @property
    def copies_next(self) -> bool:
        """Return True if a copy is due between this step and the next one."""
        return bool(self.checkpoints_due) or self._parking.copies_slices

    def copy_slice(self) -> bool:
        """Copy a part of a state whose slot is free already; False if there is none."""
        return self._parking.copy_slice()

    def paused(self) -> list[ParkedPrompt]:
        """Return the copies of paused sequences, whole."""
        self._parking.finish()
        return self._parking.owned

    def parked(self) -> list[ParkedPrompt]:
        """Return the copies of idle prompts, whole, the newest first."""
        self._parking.finish()
        return self._parking.idle

    def release(self, sequence: Sequence) -> None:
        """Drop the copy of a paused sequence that has ended."""
        self._parking.release(sequence)

    def await_leader(self, slot: Slot, sequence: Sequence) -> bool:
        """Return True while a sequence waits for its leader; then take over what the leader evaluated."""
        leader = sequence.leader
        if leader is None:
            return False
        source = self.slots[leader.slot_id]
        running = source.sequence is not None and source.sequence.id == leader.sequence_id
        if running and len(source.held) < leader.tokens:
            return True
        sequence.leader = None
        inputs = sequence.inputs
        points = {view.slot_id: resume_point(view, inputs, self.rules, salt=slot.salt) for view in self._views()}
        best = max(points, key=lambda slot_id: (points[slot_id].tokens, slot_id == slot.id))
        if points[best].tokens > len(slot.held):
            choice = SlotChoice(
                slot_id=slot.id, source_id=best, prefix_tokens=points[best].tokens, restores=points[best].restores
            )
            self._fill(slot, sequence, choice)
        return False

    def erase_tail(self, slot: Slot, kept_tokens: int) -> None:
        """Forget inputs from `kept_tokens` on; more where the memory can only go back to a checkpoint."""
        if kept_tokens >= len(slot.held):
            return
        if kept_tokens == 0 or not self._context.erase(slot.id, _position(slot, kept_tokens)):
            kept_tokens = self._go_back(slot, kept_tokens)
        self._forget(slot, kept_tokens)

    def drop_beyond(self, slot: Slot) -> bool:
        """Forget what was evaluated behind the inputs that a slot holds."""
        return self._context.take_back(slot.id, len(slot.held) - slot.excess)

    def _go_back(self, slot: Slot, kept_tokens: int) -> int:
        """Restore the latest checkpoint within the first inputs, else erase all; return how many inputs are left."""
        place = best_checkpoint(self.checkpoints.places(slot.id), prefix_tokens=kept_tokens)
        restored = place > 0 and self.checkpoints.restore(slot.id, source_id=slot.id, tokens=place)
        if restored and self._context.erase(slot.id, _position(slot, place)):
            return place
        self._context.erase(slot.id, 0)
        return 0

    def _forget(self, slot: Slot, kept_tokens: int) -> None:
        """Book what was erased."""
        del slot.held[kept_tokens:]
        slot.saved_tokens = min(slot.saved_tokens, kept_tokens)
        slot.kept_tokens = min(slot.kept_tokens, kept_tokens)
        slot.excess = excess_rows(slot.held) if slot.excess else 0
        self.shared.cut(slot.id, kept_tokens)
        self.checkpoints.cut(slot.id, kept_tokens)

    def shift(self, slot: Slot, sequence: Sequence, plan: ContextShift) -> None:
        """Make room in a full context; what must be computed again goes in front of what is pending."""
        slot.shifted, slot.kept_tokens = True, 0
        if plan.moves and self._context.erase(slot.id, plan.drop_start, plan.drop_stop):
            distance = plan.drop_start - plan.drop_stop
            self._context.move(slot.id, plan.drop_stop, len(slot.held), distance)
            del slot.held[plan.drop_start : plan.drop_stop]
            self.shared.cut(slot.id, plan.drop_start)
            self.checkpoints.cut(slot.id, plan.drop_start)
            return
        before = list(slot.held)
        if self.rules.window_tokens:  # it may have lost what the first input after the head has to see
            self._forget(slot, self._go_back(slot, plan.drop_start))
        else:
            self.erase_tail(slot, plan.drop_start)
        again = before[len(slot.held) : plan.drop_start] + before[plan.drop_stop :]
        sequence.pending = again + sequence.pending
        sequence.media_ahead = bool(sequence.images) and holds_media(sequence.pending)

    def park_one(self, *, besides: Callable[[Slot], bool] | None = None) -> bool:
        """Move the idle prompt used longest ago out of the cache, if idle ones slow the others; False if not.

        Slots for which `besides` is true stay as they are.
        """
        if not self._parking.enabled:
            return False
        idle = [slot for slot in self.slots if slot.sequence is None and slot.held]
        # The newest one stays: the last conversation is likely the next.
        if len(idle) < 2 or sum(len(slot.held) for slot in idle) <= IDLE_CELLS_MAX:
            return False
        idle.sort(key=lambda slot: slot.last_used)
        slot = next((slot for slot in idle[:-1] if slot.parks and not (besides and besides(slot))), None)
        if slot is None:
            return False
        if self._parking.park(slot.id, self._content(slot)):
            self.erase_tail(slot, 0)
            self.has_parked = True
        else:
            slot.parks = False
        return True

    def _content(self, slot: Slot) -> SlotContent:
        return SlotContent(
            slot.held,
            sequence_id=None if slot.shifted else slot.last_sequence_id,
            salt=slot.salt,
            first_position=self.first_copied_position(slot),
            slices=self.gives_slices(slot),
            names=slot.names,
            is_kept=not (slot.shifted or slot.forgotten),
        )

    def first_copied_position(self, slot: Slot) -> int:
        """Return the oldest position that a copy of a slot's state has; 0 without a window.

        What no later input attends to is still in the cache, but not in the copy.
        """
        window_start = _position(slot, len(slot.held)) + 1 - self.rules.window_tokens
        return max(self._first_position(slot), window_start) if self.rules.window_tokens else 0

    def forget(self, salt: str) -> None:
        """Erase what is held of a tenant; sequences that run go on, and nothing of them is kept outside."""
        self._parking.forget(salt)
        for slot in self.slots:
            if slot.salt == salt and slot.sequence is None:
                self.erase_tail(slot, 0)
            elif slot.salt == salt:
                slot.forgotten = True

    @property
    def saves_behind(self) -> bool:
        """Return True if a checkpoint can be taken after the call that went beyond it.

        A window that one call moves on is still there after it: cells are given to other inputs by later calls only.
        """
        context = self._context
        return self.rules.erases_tail and context.gives_slices and context.batch_tokens <= context.ubatch_tokens

    def save_checkpoints(self) -> None:
        """Copy what of slots cannot go back, as it was at the places that are due; parked prompts give way."""
        for slot, place in self.checkpoints_due:
            position = _position(slot, place) if place < len(slot.held) else None
            self.checkpoints.save(slot.id, place, position=position)
            self._parking.make_room()
        self.checkpoints_due.clear()

    def evict_oldest_idle(self) -> bool:
        """Empty the idle slot used longest ago, else what is kept only to be copied; False if nothing is idle."""
        idle = [slot for slot in self.slots if slot.sequence is None and slot.held]
        if not idle:
            return self._parking.finish()
        slot = min(idle, key=lambda candidate: candidate.last_used)
        _log_eviction(slot)
        self.erase_tail(slot, 0)
        return True

    def check(self) -> None:
        """Assert that every slot holds what its bookkeeping says."""
        for slot in self.slots:
            last = self._context.last_position(slot.id)
            held = len(slot.held)
            if slot.held and slot.held[-1] < 0:  # the last rows of an image may share a position
                assert 0 <= last < held, f"slot {slot.id}: position {last}, {held} inputs held"
            else:
                assert last + 1 == held - slot.excess, f"slot {slot.id}: position {last}, {held} inputs held"

    def _views(self, sequence: Sequence | None = None) -> list[SlotView]:
        slots = [
            SlotView(
                slot_id=slot.id,
                held=slot.held,
                busy=slot.sequence is not None,
                last_used=slot.last_used,
                first_position=self._first_position(slot),
                checkpoints=self.checkpoints.places(slot.id),
                excess=slot.excess,
                salt=slot.salt,
            )
            for slot in self.slots
        ]
        return slots + self._parking.views(sequence)

    def _first_position(self, slot: Slot) -> int:
        """Return the oldest position that a slot can still attend to; 0 without a window."""
        return max(0, self._context.first_position(slot.id)) if self.rules.window_tokens else 0

    def _prompts_in_progress(self, *, besides: Sequence) -> list[PromptView]:
        return [
            PromptView(slot_id=slot.id, sequence_id=running.id, inputs=running.inputs, salt=slot.salt)
            for slot in self.slots
            if (running := slot.sequence) is not None and running is not besides and not running.first_token_ns
        ]

    def _fill(self, slot: Slot, sequence: Sequence, choice: SlotChoice) -> None:
        """Bring the chosen prefix into the slot's cells; the rest of the inputs is pending."""
        inputs = sequence.inputs
        if choice.source_id != slot.id:
            self._fork(slot, choice, inputs)
        elif choice.restores:
            self._forget(slot, self._go_back(slot, choice.prefix_tokens))
        else:
            if not choice.prefix_tokens:
                _log_eviction(slot)
            self.erase_tail(slot, choice.prefix_tokens)
        prefix = len(slot.held)
        if sequence.images:
            slot.excess = excess_rows(slot.held)
            sequence.media_ahead = holds_media(inputs[prefix:])
        sequence.pending = inputs[prefix:]
        sequence.generating = sequence.generating and len(sequence.pending) == 1
        if not sequence.first_token_ns:
            sequence.cached_tokens = max(0, prefix - sequence.computed_tokens)
        if self.checkpoints.enabled:
            planned = plan_checkpoints(
                held_tokens=prefix, prompt_tokens=len(inputs), boundaries=sequence.prepared.boundaries
            )
            sequence.checkpoints = tuple(place for place in planned if whole_units(inputs, place) == place)

    def _fork(self, slot: Slot, choice: SlotChoice, inputs: list[int]) -> None:
        """Let a slot use the prefix that another one holds or has saved."""
        prefix = choice.prefix_tokens
        stop = prefix - excess_rows(inputs[:prefix])
        _log_eviction(slot)
        self.erase_tail(slot, 0)
        if choice.source_id >= len(self.slots):
            if self._parking.unpark(choice, stop):
                slot.held = inputs[:prefix]
                log.info("slot.unparked", slot=slot.id, tokens=prefix)
            return
        if self._context.is_taken_back(choice.source_id):
            return
        self._context.copy(choice.source_id, slot.id, stop)
        if choice.restores:
            restored = self.checkpoints.restore(slot.id, source_id=choice.source_id, tokens=prefix)
            if not restored or not self._context.erase(slot.id, stop):
                self._context.erase(slot.id, 0)
                return
        if self._context.shares_cells:
            self.shared.fork(choice.source_id, slot.id, prefix)
        self.checkpoints.fork(choice.source_id, slot.id, prefix)
        slot.held = inputs[:prefix]
        log.info("slot.forked", source=choice.source_id, slot=slot.id, tokens=prefix)


def _log_eviction(slot: Slot) -> None:
    """Clear a slot for another sequence."""
    if slot.held:
        log.info("slot.evicted", slot=slot.id, tokens=len(slot.held))


def _position(slot: Slot, index: int) -> int:
    """Return the position of an input of a slot; never an index inside an image."""
    return index - excess_rows(slot.held[:index]) if slot.excess else index
