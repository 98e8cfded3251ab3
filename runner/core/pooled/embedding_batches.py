"""Decide which inputs share the next decode call. Pure: numbers in, a plan out.

1. All inputs of a call together have at most `batch_tokens` tokens, and there are at most `inputs_max`: the engine
   aborts above that.
2. Requests give one input each in turn: one with thousands of inputs does not keep one with a single input waiting.
3. A request whose next input does not fit gives no more to this call. If it gave none at all, it begins the next one:
   no input is overtaken for ever.
4. An input that must be alone has a call of its own.
"""

from collections.abc import Sequence
from typing import NamedTuple


class InputDemand(NamedTuple):
    """One request that has inputs to compute. Each input has at least one token and at most a whole batch."""

    key: int
    input_tokens: Sequence[int]  # of all its inputs, in order
    first: int = 0  # index of the first pending one
    alone: bool = False  # which must have a call to itself


class InputRow(NamedTuple):
    """The first pending inputs of one request."""

    key: int
    inputs: int


class InputPlan(NamedTuple):
    """One decode call, in the order in which requests were visited."""

    rows: tuple[InputRow, ...]
    next_start: int  # key from which the next plan goes round


def plan_inputs(demands: Sequence[InputDemand], *, batch_tokens: int, inputs_max: int, start: int) -> InputPlan:
    """Choose the inputs of one decode call.

    Args:
        demands: every request with pending inputs, in the order of their keys.
        batch_tokens: most tokens of all inputs together.
        inputs_max: most inputs.
        start: the first key at or after this one is visited first; `next_start` of the previous plan.
    """
    if not demands:
        return InputPlan((), start)
    split = next((index for index, demand in enumerate(demands) if demand.key >= start), 0)
    order = [*demands[split:], *demands[:split]]
    if order[0].alone:
        return InputPlan((InputRow(order[0].key, 1),), order[0].key + 1)
    taken = _share_out(order, batch_tokens=batch_tokens, inputs_max=inputs_max)
    rows = tuple(InputRow(demand.key, taken[demand.key]) for demand in order if taken[demand.key])
    left_out = next((demand.key for demand in order if not taken[demand.key]), None)
    return InputPlan(rows, order[0].key + 1 if left_out is None else left_out)


def _share_out(order: Sequence[InputDemand], *, batch_tokens: int, inputs_max: int) -> dict[int, int]:
    """Return the number of inputs that each request contributes: one in turn until nothing more fits."""
    taken = {demand.key: 0 for demand in order}
    free_tokens, free_inputs = batch_tokens, inputs_max
    giving = [demand for demand in order if not demand.alone]
    while giving and free_inputs:
        still_giving = []
        for demand in giving:
            index = demand.first + taken[demand.key]
            if not free_inputs or demand.input_tokens[index] > free_tokens:
                continue
            free_tokens -= demand.input_tokens[index]
            free_inputs -= 1
            taken[demand.key] += 1
            if index + 1 < len(demand.input_tokens):
                still_giving.append(demand)
        giving = still_giving
    return taken
