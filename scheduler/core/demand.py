"""How often a model is asked for, and what it would cost to have thrown it out. Pure."""

import math
from dataclasses import dataclass, replace

HALF_LIFE_S = 600.0
# How far ahead an eviction looks: asked within this time, it was a mistake.
HORIZON_S = 300.0
_DECAY_PER_S = math.log(2) / HALF_LIFE_S
# Until a load of the model was seen: a file is read at so many bytes a second, after a process has started.
READ_BYTES_PER_S = 1 << 30
START_S = 1.0
# No process starts faster, whatever was seen.
RELOAD_S_MIN = 0.1
FOR_EVER_FACTOR = 100.0
PRIORITY_FACTOR = 10.0
# A model that nobody has asked for in hours still costs its reload if it is asked for: ties are broken by size.
LOSS_MIN = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests per second, as an average in which what was ten minutes ago counts half."""

    rate_per_s: float = 0.0
    at_s: float = 0.0
    load_s: float | None = None  # how long the last load took; None: none was seen

    def rate_at(self, now_s: float) -> float:
        """The rate, if nobody has asked since."""
        return self.rate_per_s * math.exp(-_DECAY_PER_S * max(0.0, now_s - self.at_s))

    def asked(self, requests: int, now_s: float) -> "Demand":
        """The same after so many requests."""
        return replace(self, rate_per_s=self.rate_at(now_s) + requests * _DECAY_PER_S, at_s=now_s)

    def loaded_in(self, load_s: float) -> "Demand":
        """The same after a load that took so long."""
        return replace(self, load_s=load_s)

    def asked_within_horizon(self, now_s: float) -> float:
        """The probability that somebody asks before the horizon."""
        return 1.0 - math.exp(-self.rate_at(now_s) * HORIZON_S)


NO_DEMAND = Demand()


def reload_s(demand: Demand, size_bytes: int) -> float:
    """How long it takes to have the model back."""
    if demand.load_s is None:
        return START_S + size_bytes / READ_BYTES_PER_S
    return max(demand.load_s, RELOAD_S_MIN)


def loss_of(
    demand: Demand, *, now_s: float, size_bytes: int, held_s: float, kept_for_ever: bool, priority: int
) -> float:
    """Seconds of work that are likely to be needed again: loading, and prompts that its slots hold (`held_s`)."""
    seconds = (reload_s(demand, size_bytes) + held_s) * max(demand.asked_within_horizon(now_s), LOSS_MIN)
    return seconds * (FOR_EVER_FACTOR if kept_for_ever else 1.0) * float(PRIORITY_FACTOR**priority)
