"""Fences: the rule for which commands a host accepts. Pure.

A command carries the fence of the scheduler that gives it. Fences only grow, so a scheduler with a lower one than a
host has already seen has lost the leadership, whatever it believes itself. This holds without clocks and without Redis.
The clock only bounds the numbers: one beyond `common.fences.fence_max` is never accepted, and a stored one does not
count, so that no single command can lock out every later leader.
"""

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The right to command, as it came with a command."""

    number: int
    leader_id: str


NO_FENCE = Fence(number=0, leader_id="")


class FenceVerdict(Enum):
    """Result of the check of a fence."""

    ACCEPTED = auto()
    STALE = auto()
    BEYOND_CLOCK = auto()


def judge_fence(fence: Fence, *, highest: Fence, number_max: int) -> FenceVerdict:
    """Accept a fence above every one seen, and the highest itself from the same leader; none above `number_max`."""
    if fence.number > number_max:
        return FenceVerdict.BEYOND_CLOCK
    believed = highest if highest.number <= number_max else NO_FENCE
    if fence.number > believed.number or (fence == believed and fence.number > 0):
        return FenceVerdict.ACCEPTED
    return FenceVerdict.STALE
