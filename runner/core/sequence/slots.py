"""Choose the slot of a new sequence by what the slots' caches hold. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from runner.core.sequence.checkpoints import best_checkpoint
from runner.core.sequence.inputs import excess_rows, whole_units


class SlotPolicy(StrEnum):
    """Rule for choosing a slot. `longest` suits one user, `best` many."""

    LONGEST = "longest"
    BEST = "best"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRules:
    """Limits of the engine's memory for this model."""

    erases_tail: bool = True  # False: recurrent state; only a whole sequence can be erased
    rollback_tokens: int = 0  # inputs of the last call that a recurrent state can go back
    window_tokens: int = 0  # sliding attention window; 0: none. Positions before it may be gone
    can_move: bool = True  # positions can be renumbered (context shift)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """State of a slot as the choice needs it."""

    slot_id: int
    held: list[int]  # inputs in the cache, in order
    busy: bool
    last_used: int  # grows with every use
    first_position: int = 0  # the oldest position still in the cache; > 0 only with a sliding window
    checkpoints: tuple[int, ...] = ()  # after how many inputs a copy of what cannot go back was taken
    excess: int = 0  # by how many the inputs held outnumber their positions; only images do that
    worth_tokens: int = 0  # a shorter prefix than this is computed faster than it is brought here
    salt: str = ""  # of the request whose prompt it holds; nothing is taken from it for another one


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChoice:
    """Use `slot_id` with the first `prefix_tokens` of the prompt taken from the cache of `source_id`.

    `source_id` differs from `slot_id` when the prefix is copied (a fork). With `restores` the source's memory has moved
    on, and its checkpoint of that length is put back.
    """

    slot_id: int
    source_id: int
    prefix_tokens: int
    restores: bool = False


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """From where a slot's cache can be continued, and whether that needs its checkpoint."""

    tokens: int
    restores: bool


def common_prefix_tokens(left: list[int], right: list[int]) -> int:
    """Length of the common start of two input lists.

    Compares slices that grow, since prompts have thousands of inputs and most differ early.
    """
    length = min(len(left), len(right))
    start, step = 0, 16
    while start < length:
        stop = min(start + step, length)
        if left[start:stop] != right[start:stop]:
            while left[start] == right[start]:
                start += 1
            return start
        start, step = stop, min(step * 2, 4096)
    return length


def resume_point(slot: SlotView, prompt: list[int], rules: MemoryRules, *, salt: str = "") -> ResumePoint:
    """Return how many leading inputs of the prompt a sequence can take from a slot's cache; none of another salt.

    One input is always left to compute, because its logits are wanted. An image is taken whole or not at all.
    """
    if slot.salt != salt:
        return ResumePoint(0, restores=False)
    prefix = whole_units(prompt, min(common_prefix_tokens(slot.held, prompt), len(prompt) - 1))
    if prefix < slot.worth_tokens:
        return ResumePoint(0, restores=False)
    cut_is_impossible = not rules.erases_tail and prefix < len(slot.held)
    # A token at position p sees positions > p - window; the first one still held must be no later.
    position = prefix - excess_rows(prompt[:prefix]) if slot.excess else prefix
    window_is_gone = rules.window_tokens > 0 and slot.first_position > max(0, position + 1 - rules.window_tokens)
    if cut_is_impossible or window_is_gone:
        saved = best_checkpoint(slot.checkpoints, prefix_tokens=prefix)
        return ResumePoint(saved, restores=saved > 0)
    return ResumePoint(prefix, restores=False)


def choose_slot(
    slots: Sequence[SlotView],
    prompt: list[int],
    *,
    policy: SlotPolicy,
    rules: MemoryRules,
    reuse: bool = True,
    salt: str = "",
) -> SlotChoice | None:
    """Choose a slot for a prompt; None if every slot is busy.

    Args:
        slots: all slots, by id.
        prompt: inputs of the new sequence, at least one.
        policy: which idle slot wins, and whether a prefix may be copied from another slot.
        rules: what the memory can do.
        reuse: False takes nothing from the cache; the policy still chooses the slot.
        salt: of the request.
    """
    idle = [slot for slot in slots if not slot.busy]
    if not idle:
        return None
    points = {slot.slot_id: resume_point(slot, prompt, rules, salt=salt) for slot in slots}
    prefixes = {slot_id: point.tokens for slot_id, point in points.items()}
    if policy is SlotPolicy.LONGEST:
        chosen = max(idle, key=lambda slot: (prefixes[slot.slot_id], -slot.slot_id))
        source = chosen
    else:
        # On equal prefixes an idle slot wins over a busy one: it may need no copy.
        source = max(slots, key=lambda slot: (prefixes[slot.slot_id], not slot.busy, -slot.slot_id))
        if not source.busy and prefixes[source.slot_id] == len(source.held) > 0:
            chosen = source
        else:
            chosen = min(idle, key=lambda slot: (slot.last_used, slot.slot_id))
    point = points[source.slot_id]
    if not reuse or point.tokens == 0:
        return SlotChoice(slot_id=chosen.slot_id, source_id=chosen.slot_id, prefix_tokens=0)
    return SlotChoice(
        slot_id=chosen.slot_id, source_id=source.slot_id, prefix_tokens=point.tokens, restores=point.restores
    )


# A wait for fewer inputs than this gains nothing over computing them.
SHARED_TOKENS_MIN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """A sequence that is about to evaluate `tokens` leading inputs that another one needs too."""

    slot_id: int
    sequence_id: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptView:
    """A sequence whose prompt is being evaluated."""

    slot_id: int
    sequence_id: int
    inputs: list[int]
    salt: str = ""


def choose_leader(inputs: list[int], *, held_tokens: int, older: Sequence[PromptView], salt: str = "") -> Leader | None:
    """Choose the sequence that a new one waits for instead of evaluating the same inputs twice.

    Waiting is never slower: the leader gets the share of the batch that the follower leaves.

    Args:
        inputs: what the new sequence has to hold.
        held_tokens: how many of them it has already.
        older: sequences that came before and evaluate their prompts; following only older ones makes no circle.
        salt: of the new sequence; others' are not followed.
    """
    best: Leader | None = None
    for prompt in older:
        if prompt.salt != salt:
            continue
        tokens = min(common_prefix_tokens(prompt.inputs, inputs), len(inputs) - 1)
        if tokens >= held_tokens + SHARED_TOKENS_MIN and (best is None or tokens > best.tokens):
            best = Leader(slot_id=prompt.slot_id, sequence_id=prompt.sequence_id, tokens=tokens)
    return best


class SharedCells:
    """Slots that share the same cells, and the number of shared leading inputs. The engine's thread owns it.

    In a unified cache a fork shares cells, and moving them in one slot moves them in the other.
    """

    def __init__(self) -> None:
        self._shared: dict[frozenset[int], int] = {}

    def fork(self, source_id: int, copy_id: int, tokens: int) -> None:
        """`copy_id` (erased before) now uses the first `tokens` cells of `source_id`, and of all that share those."""
        for pair, shared in list(self._shared.items()):
            if source_id in pair:
                (other,) = pair - {source_id}
                self._shared[frozenset((copy_id, other))] = min(shared, tokens)
        self._shared[frozenset((source_id, copy_id))] = tokens

    def cut(self, slot_id: int, kept_tokens: int) -> None:
        """`slot_id` gave up its cells from `kept_tokens` on (or moved them, which also ends the sharing)."""
        for pair, shared in list(self._shared.items()):
            if slot_id in pair:
                if kept_tokens == 0:
                    del self._shared[pair]
                else:
                    self._shared[pair] = min(shared, kept_tokens)

    def shared_tokens(self, slot_id: int) -> int:
        """Return the number of leading inputs of a slot that another slot uses too."""
        return max((shared for pair, shared in self._shared.items() if slot_id in pair), default=0)
