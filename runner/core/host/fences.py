"""Fences: the rule for which commands a host accepts. Pure.

A command carries the fence of the scheduler that gives it. Fences only grow, so a scheduler with a lower one than a
host has already seen has lost the leadership, whatever it believes itself. This holds without clocks and without Redis.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The right to command, as it came with a command."""

    number: int
    leader_id: str


NO_FENCE = Fence(number=0, leader_id="")


def is_accepted(fence: Fence, *, highest: Fence) -> bool:
    """Return True for a fence above every one seen, and for the highest itself from the same leader."""
    return fence.number > highest.number or (fence == highest and fence.number > 0)
