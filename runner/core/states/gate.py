"""Decide whether to restore a saved state or to compute it again, by measured speeds. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Tier(StrEnum):
    """Place of a saved state."""

    RAM = "ram"
    DISK = "disk"
    PEER = "peer"  # another node; a state that was brought from there is in RAM


_NEWEST_SHARE = 0.25  # of the newest figure in what is expected of the next one
# A restore has to be so much faster than computing before a gate that computed restores again.
REOPEN_SHARE = 0.8
# Of a tier that nothing was read from yet: slow devices of their kind, so that a first try costs little.
ASSUMED_BYTES_PER_S = {Tier.RAM: 2e9, Tier.DISK: 1e8, Tier.PEER: 1e8}
STEP_DELAY_S = 0.003  # that a copy may add to a step; the bar is 5 ms
SLICE_TOKENS_MIN = 16
FIXED_S = 0.002  # a message to the host, a mapping, a call of the engine


@dataclass(slots=True)
class _Way:
    bytes_per_s: float
    restores: bool = True  # the last decision


class CopySpeed:
    """Speed of copies of states between a cache and host RAM, and of joining slices of them there, as measured."""

    def __init__(self) -> None:
        self.bytes_per_s = 1e9  # assumed before the first copy
        self.joined_per_s = 0.5e9  # bytes, assumed before the first slice is joined

    def see(self, *, size_bytes: int, seconds: float) -> None:
        """Learn from a copy."""
        self.bytes_per_s += _NEWEST_SHARE * (size_bytes / max(seconds, 1e-6) - self.bytes_per_s)

    def see_join(self, *, size_bytes: int, seconds: float) -> None:
        """Learn from a slice that was joined. `seconds`: of a processor, which a step misses."""
        self.joined_per_s += _NEWEST_SHARE * (size_bytes / max(seconds, 1e-6) - self.joined_per_s)

    def seconds(self, size_bytes: int) -> float:
        """Predict the time of a copy."""
        return size_bytes / self.bytes_per_s

    def delays(self, size_bytes: int) -> bool:
        """Return True if a copy takes longer than a step may wait for it."""
        return self.seconds(size_bytes) > STEP_DELAY_S

    def slice_tokens(self, token_bytes: float) -> int:
        """Return how many inputs to copy between two steps.

        Joining them takes longer: their pages are new, and a virtual machine may not have them yet.
        """
        token_s = token_bytes / self.bytes_per_s + token_bytes / self.joined_per_s
        return max(SLICE_TOKENS_MIN, int(STEP_DELAY_S / token_s))


class RestoreGate:
    """Speeds of each tier and the decisions that follow from them. Owned by the engine thread."""

    def __init__(self) -> None:
        self._ways = {tier: _Way(speed) for tier, speed in ASSUMED_BYTES_PER_S.items()}

    def see(self, tier: Tier, *, size_bytes: int, seconds: float) -> None:
        """Learn from a state that was brought back, from the request to the last copy."""
        way = self._ways[tier]
        speed = size_bytes / max(seconds - FIXED_S, 1e-6)
        way.bytes_per_s += _NEWEST_SHARE * (speed - way.bytes_per_s)

    def cost_s(self, tier: Tier, size_bytes: int) -> float:
        """Predict the time to bring a state back."""
        return FIXED_S + size_bytes / self._ways[tier].bytes_per_s

    def restores(self, tier: Tier, *, size_bytes: int, saved_s: float) -> bool:
        """Return True if bringing a state back is faster than computing what it saves.

        Args:
            tier: where the state is.
            size_bytes: all of it is read, also for a part of its inputs.
            saved_s: to compute the inputs that only this state has.
        """
        way = self._ways[tier]
        way.restores = self.cost_s(tier, size_bytes) < saved_s * (1.0 if way.restores else REOPEN_SHARE)
        return way.restores
