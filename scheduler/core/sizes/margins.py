"""Errors of measurements so far, and the margins that follow.

p99 of (real − measured) over the last 200 loads per engine build, architecture, kind of device, and whether the layout
has one device or several, but no more than p99 of the same as a part of what was measured. At least 16 MiB, 64 MiB till
there were 20. Both are for devices of 24 GiB and more: a smaller one keeps the same part of its memory.
What ran out of device memory while it ran gets more for itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from scheduler.core.values.memory import GIB, MIB

# The largest error that was ever seen on a device is 4 MiB: on a card of 8 GiB five are left at least.
FULL_SIZE_BYTES = 24 * GIB
LOADS_KEPT = 200
LOADS_MIN = 20
MARGIN_BYTES_MIN = 16 * MIB
EXHAUSTED_BYTES_MIN = 256 * MIB
EXHAUSTED_SHARE = 0.1  # of graph and cache
PERCENT = 99


Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginKey:
    """Loads that are expected to be off by as much."""

    build: str
    architecture: str
    device_kind: str
    is_split: bool = False  # over several devices: what they hand each other cannot be counted on every machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """Everything that was learned. A new value at every change."""

    residuals: Mapping[MarginKey, tuple[int, ...]] = field(default_factory=dict)  # real − measured, oldest first
    shares: Mapping[MarginKey, tuple[float, ...]] = field(default_factory=dict)  # the same as parts of measured
    exhausted: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (model digest, device kind) → extra bytes

    def of(
        self,
        key: MarginKey,
        model_digest: str,
        *,
        unlearned_bytes: int,
        need_bytes: int | None = None,
        total_bytes: int = FULL_SIZE_BYTES,
    ) -> int:
        """Return the margin of a measured need on a device of this size."""
        extra = self.exhausted.get((model_digest, key.device_kind), 0)
        seen, shares = self.residuals.get(key, ()), self.shares.get(key, ())
        least = MARGIN_BYTES_MIN if len(seen) >= LOADS_MIN else unlearned_bytes
        least = least * min(total_bytes, FULL_SIZE_BYTES) // FULL_SIZE_BYTES
        if not seen:
            return least + extra
        learned = percentile(seen)
        if need_bytes is not None and len(shares) == len(seen):
            learned = min(learned, int(percentile(shares) * need_bytes))
        return max(least, learned) + extra

    def with_residual(self, key: MarginKey, residual_bytes: int, measured_bytes: int = 0) -> "Margins":
        """Return the margins after a load whose report showed the error of its measurement."""
        seen = (*self.residuals.get(key, ()), residual_bytes)[-LOADS_KEPT:]
        shares = self.shares.get(key, ())
        if measured_bytes > 0:
            shares = (*shares, residual_bytes / measured_bytes)[-LOADS_KEPT:]
        return replace(self, residuals={**self.residuals, key: seen}, shares={**self.shares, key: shares})

    def with_exhausted(self, model_digest: str, device_kind: str, *, graph_and_cache_bytes: int) -> "Margins":
        """Return the margins after a process exhausted device memory: never the same layout unchanged."""
        key = (model_digest, device_kind)
        more = max(EXHAUSTED_BYTES_MIN, int(graph_and_cache_bytes * EXHAUSTED_SHARE))
        return replace(self, exhausted={**self.exhausted, key: self.exhausted.get(key, 0) + more})

    def with_all(self, others: "Margins") -> "Margins":
        """Return these margins; `others` replace those that both have."""
        return Margins(
            residuals={**self.residuals, **others.residuals},
            shares={**self.shares, **others.shares},
            exhausted={**self.exhausted, **others.exhausted},
        )

    def since(self, before: "Margins") -> "Margins":
        """Return the margins that differ from `before`."""
        news = {key: seen for key, seen in self.residuals.items() if seen != before.residuals.get(key)}
        return Margins(
            residuals=news,
            shares={key: self.shares.get(key, ()) for key in news},
            exhausted={key: extra for key, extra in self.exhausted.items() if extra != before.exhausted.get(key)},
        )


NO_MARGINS = Margins()


def percentile(values: tuple[Number, ...]) -> Number:
    """Return the smallest of the values that 99 % of them do not exceed."""
    return sorted(values)[-(-len(values) * PERCENT // 100) - 1]
