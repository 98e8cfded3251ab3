"""Decide which inputs of which sequences go into the next decode call. Pure.

Generating sequences get their one token first, unless a prompt of a higher band makes them wait. The rest goes to the
prompt that is done first, of those of the highest band. Another one of that band shares the call only where that delays
first tokens less than a call of its own would delay first tokens of those that wait, and the ends of all. Tenants take
turns: each one's prompts count as queued behind what was computed of its earlier ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from common.spec.bands import Band

# A call that holds generating sequences takes so long with prompts, so that no stream stands still for longer; where a
# call takes most of that by itself, twice its time. For so long, too, a stream waits for prompts of a higher band.
STREAMS_WAIT_S_MAX = 1.0
# A prompt takes calls of about this time where a request of a higher band may come, which waits for the one that runs.
EXPECTED_WAITS_S = 0.06


class BatchRow(NamedTuple):
    """Inputs of one sequence in a decode call. A named tuple, because one is made per sequence and step."""

    key: int  # names the sequence in the plan
    pending_tokens: int  # inputs that are not in the cache yet, >= 1
    room_tokens: int  # context limit minus inputs held
    generating: bool  # its one pending input is the token sampled last
    # Lengths of the indivisible units that the pending inputs begin with; empty: every input stands alone.
    unit_tokens: tuple[int, ...] = ()
    passed_tokens: int = 0  # inputs that overtook it, in calls that left it out
    tenant: str = ""
    rank: int = 0  # the band that it counts as; a lower number goes first
    waited_s: float = 0.0  # of a generating one, since its last token
    tokens: int = 0  # how many of the pending inputs the plan takes, the first ones

    @property
    def complete(self) -> bool:
        """Return True if no input stays pending, so that logits are wanted."""
        return self.tokens == self.pending_tokens


class BatchPlan(NamedTuple):
    """One decode call. `full` names sequences that need a context shift before they can add anything."""

    rows: tuple[BatchRow, ...]
    full: tuple[int, ...]
    left_out: tuple[int, ...]  # able sequences without a row


class CallCost(NamedTuple):
    """Time of a decode call: `fixed_s`, and `token_s` for each input. Zeros: not known yet."""

    fixed_s: float = 0.0
    token_s: float = 0.0


UNKNOWN_COST = CallCost()


class TenantClocks:
    """Prompt inputs computed for each tenant while prompts wait.

    Source: start-time fair queueing (Goyal et al., 1996). A tenant that comes back starts no earlier than those that
    wait, so that idle time earns nothing, and a pause between two prompts forgives nothing.
    """

    def __init__(self) -> None:
        self.inputs: dict[str, int] = {}

    def start(self, wanted: Iterable[BatchRow]) -> None:
        """Start the clocks of tenants whose prompts wait, and forget those that would start anew alike."""
        waiting = {row.tenant for row in wanted if not row.generating}
        if not waiting:
            self.inputs.clear()
            return
        behind = min([self.inputs[tenant] for tenant in waiting if tenant in self.inputs], default=0)
        self.inputs = {tenant: inputs for tenant, inputs in self.inputs.items() if inputs > behind}
        for tenant in waiting:
            self.inputs.setdefault(tenant, behind)

    def book(self, rows: Iterable[BatchRow]) -> None:
        """Count the inputs of a call."""
        for row in rows:
            if not row.generating:
                self.inputs[row.tenant] += row.tokens


def plan_batch(
    wanted: Sequence[BatchRow],
    *,
    batch_tokens: int,
    cost: CallCost = UNKNOWN_COST,
    clocks: Mapping[str, int] | None = None,
    wait_s: float = 0.0,
) -> BatchPlan:
    """Choose the rows of one decode call, and how many tokens each takes.

    Sequences of a tenant are ordered by what they have left, minus what passed them: later prompts overtake one until
    their inputs are as many as its own, so behind earlier ones it takes at most twice the time that it takes alone.

    Args:
        wanted: a row of every sequence that has pending inputs, in the order of their keys.
        batch_tokens: most inputs of all sequences together. One unit that is larger widens its batch, alone in it.
        cost: of a call of this engine, as measured.
        clocks: of the tenants whose prompts wait, see `TenantClocks`; None: all are one tenant's.
        wait_s: for which generating sequences may wait for this call without a row in it; 0: none does.
    """
    full = tuple([row.key for row in wanted if row.room_tokens < 1])
    if not full and len(wanted) <= batch_tokens and all(row.generating for row in wanted):
        return BatchPlan(tuple([row._replace(tokens=row.pending_tokens) for row in wanted]), full, ())
    able = [row for row in wanted if row.room_tokens >= 1]
    able.sort(key=lambda row: (not row.generating and 1 + row.rank, row.pending_tokens - row.passed_tokens))
    if clocks is not None and len(clocks) > 1:
        able = _by_turns(able, dict(clocks))
    highest = min([row.rank for row in able if not row.generating], default=0)
    rows: list[BatchRow] = []
    left_out: list[int] = []
    free: float = batch_tokens
    prompts = 0  # rows of prompts
    most = free  # inputs of prompts
    for index, row in enumerate(able):
        if not row.generating and not prompts:
            if rows or wait_s:
                free = min(free, _prompt_tokens_max(cost, wait_s or STREAMS_WAIT_S_MAX))
            most = free
        waits = not row.generating and row.rank > highest
        taken = 0 if waits else _taken_tokens(row, free=free, batch_is_empty=not rows)
        # A call less is its fixed time less: to the first tokens of those that wait, and to the ends of all. A part of
        # a prompt saves as small a part of that.
        spent = taken if taken == min(row.pending_tokens, row.room_tokens) else most
        if taken and prompts * spent * cost.token_s <= (len(able) - index + len(able)) * cost.fixed_s:
            free = max(0, free - taken)
            rows.append(row._replace(tokens=taken))
            prompts += not row.generating
        else:
            left_out.append(row.key)
    return BatchPlan(tuple(rows), full, tuple(left_out))


def hold_streams(
    wanted: Sequence[BatchRow], *, cost: CallCost, expected_band: int = Band.LOW, one_comes: bool = False
) -> tuple[list[BatchRow], float]:
    """Leave out the generating sequences that wait for a prompt of a higher band.

    All of them get their token as soon as one has waited for so long that another call would exceed the limit, and
    while the cost of calls is not known.

    Args:
        wanted: as `plan_batch`.
        cost: as `plan_batch`.
        expected_band: the highest one of which a request may come.
        one_comes: a state is being brought for a request, which then takes little of a call.

    Returns:
        the rows that are left, and how long those left out, or a request that may come, may wait for the next call; 0:
        nothing waits.
    """
    prompts = [row.rank for row in wanted if not row.generating]
    if not prompts or not cost.token_s:
        return list(wanted), 0.0
    highest = min(prompts)
    wait_s = EXPECTED_WAITS_S if one_comes or highest > expected_band else 0.0
    held_s = [row.waited_s for row in wanted if row.generating and row.rank > highest]
    left_s = STREAMS_WAIT_S_MAX - max(held_s, default=STREAMS_WAIT_S_MAX)
    if left_s < 2 * cost.fixed_s or left_s <= 0:
        return list(wanted), wait_s
    return [row for row in wanted if not row.generating or row.rank <= highest], min(left_s, wait_s or left_s)


def _by_turns(able: list[BatchRow], clocks: dict[str, int]) -> list[BatchRow]:
    """Order prompts by band, then by their tenants' clocks when each is done; generating sequences stay first."""
    done_at = []
    for row in able:
        if not row.generating:
            clocks[row.tenant] += row.pending_tokens
        done_at.append((-1, 0) if row.generating else (row.rank, clocks[row.tenant]))
    return [able[index] for index in sorted(range(len(able)), key=done_at.__getitem__)]


def _prompt_tokens_max(cost: CallCost, wait_s: float) -> float:
    """Return the most inputs of prompts in a call for which streams wait so long."""
    if not cost.token_s:
        return float("inf")
    return max(1, int(max(wait_s - cost.fixed_s, cost.fixed_s) / cost.token_s))


def _taken_tokens(row: BatchRow, *, free: float, batch_is_empty: bool) -> int:
    """Count the pending inputs of one sequence that fit, without splitting a unit or passing its context limit."""
    if not row.unit_tokens:
        return int(min(row.pending_tokens, row.room_tokens, free))
    taken = 0
    for unit in row.unit_tokens:
        if taken + unit > row.room_tokens:
            break
        if taken + unit > free and not (batch_is_empty and taken == 0):
            break
        taken += unit
    else:
        loose = row.pending_tokens - taken
        taken += int(max(0, min(loose, row.room_tokens - taken, free - taken)))
    return taken
