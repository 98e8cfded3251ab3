"""Forecast of a model's next request, and the cost of having evicted it. Pure.

What counts are the gaps between its requests. Where they are alike, the next request is due a gap after the last one;
where they are not, the last one shows nothing and the mean is all there is. A request that is overdue becomes the less
likely the longer it is. So models used in turns are distinguished from models just used, which no rate can do.
"""

from dataclasses import dataclass, replace

# How far ahead an eviction looks: a model that is asked for once in this time costs its reload.
HORIZON_S = 300.0
# Until a second request was seen, the next one is taken to be as far away.
FIRST_GAP_S = 900.0
# Each gap counts a tenth, so that habits of the last ten or twenty requests decide.
GAP_WEIGHT_MIN = 0.1
# With so many gaps seen, half of what they have in common is believed.
GAPS_BELIEVED = 2
# Nothing is expected more exactly than to this part of its mean gap; and requests that come at once count as one.
SHARPNESS_MIN = 0.1
GAP_S_MIN = 1.0
# Until a load of the model was seen: a file is read at so many bytes a second, after a process has started.
READ_BYTES_PER_S = 1 << 30
START_S = 1.0
# No process starts faster, whatever was seen.
RELOAD_S_MIN = 0.1
FOR_EVER_FACTOR = 100.0
PRIORITY_FACTOR = 10.0
# A model without a request for hours still costs its reload if it is asked for: ties are broken by size.
LOSS_MIN = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDemand:
    """Requests for a model: the time of the last, and the gaps between them."""

    at_s: float | None = None  # None: never
    gaps: int = 0
    mean_s: float = 0.0
    mean_square_s: float = 0.0
    load_s: float | None = None  # how long the last load took; None: none was seen
    load_bytes: int = 0  # how large its file was

    def asked(self, now_s: float) -> "ModelDemand":
        """Return a copy after a request, or some at once."""
        if self.at_s is None:
            return replace(self, at_s=now_s)
        gap_s = max(now_s - self.at_s, 0.0)
        weight = max(GAP_WEIGHT_MIN, 1.0 / (self.gaps + 1))
        return replace(
            self,
            at_s=now_s,
            gaps=self.gaps + 1,
            mean_s=self.mean_s + weight * (gap_s - self.mean_s),
            mean_square_s=self.mean_square_s + weight * (gap_s * gap_s - self.mean_square_s),
        )

    def loaded_in(self, load_s: float, size_bytes: int = 0) -> "ModelDemand":
        """Return a copy after a load that took so long."""
        return replace(self, load_s=load_s, load_bytes=size_bytes)

    @property
    def regularity(self) -> float:
        """Return the similarity of the gaps, if there were enough of them: 1 a clock, 0 no more than chance."""
        if not self.mean_s:
            return 0.0
        variation = self.mean_square_s / self.mean_s**2 - 1.0
        return min(1.0, max(0.0, 1.0 - variation)) * self.gaps / (self.gaps + GAPS_BELIEVED)

    def next_in_s(self, now_s: float) -> float:
        """Return the seconds until the next request is likely; infinite: there was none."""
        if self.at_s is None:
            return float("inf")
        passed_s = max(0.0, now_s - self.at_s)
        if not self.gaps:
            return FIRST_GAP_S + passed_s
        mean_s = max(self.mean_s, GAP_S_MIN)
        due_s = mean_s - self.regularity * min(passed_s, mean_s)
        return max(due_s, SHARPNESS_MIN * mean_s) + max(0.0, passed_s - mean_s)

    def asked_within_horizon(self, now_s: float) -> float:
        """Return the expected number of requests before the horizon."""
        return HORIZON_S / self.next_in_s(now_s)


NO_DEMAND = ModelDemand()


def reload_s(demand: ModelDemand, size_bytes: int) -> float:
    """Return the time that a reload takes."""
    if demand.load_s is None:
        return START_S + size_bytes / READ_BYTES_PER_S
    return max(demand.load_s, RELOAD_S_MIN)


def loss_of(
    demand: ModelDemand, *, now_s: float, size_bytes: int, held_s: float, kept_for_ever: bool, priority: int
) -> float:
    """Return the seconds of work that are likely to be needed again: loading, and prompts in its slots (`held_s`)."""
    seconds = (reload_s(demand, size_bytes) + held_s) * max(demand.asked_within_horizon(now_s), LOSS_MIN)
    return seconds * (FOR_EVER_FACTOR if kept_for_ever else 1.0) * float(PRIORITY_FACTOR**priority)
