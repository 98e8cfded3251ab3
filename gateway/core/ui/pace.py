"""Remaining time of a load, from its speed so far. Pure."""

from collections.abc import Collection
from dataclasses import dataclass, field

# Less progress than this says nothing about the pace.
_PROGRESS_MIN = 0.02


@dataclass(slots=True)
class LoadPaces:
    """First observation of each load. A load that restarted from less begins anew."""

    _first: dict[str, tuple[float, float]] = field(default_factory=dict)  # key: (seconds, fraction)

    def seconds_left(self, key: str, fraction: float, now_s: float) -> float | None:
        """Estimate the seconds until the load is done, at its pace so far; None: too early."""
        began_s, began = self._first.setdefault(key, (now_s, fraction))
        if fraction < began:
            self._first[key] = (now_s, fraction)
            return None
        moved = fraction - began
        if moved < _PROGRESS_MIN or now_s <= began_s:
            return None
        return round((1 - fraction) * (now_s - began_s) / moved, 1)

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget loads that are over."""
        for key in self._first.keys() - set(keys):
            del self._first[key]
