"""How far measurements have been off, and what is therefore kept on top of them.

p99 of (real − measured) over the last 200 loads per engine build, architecture and kind of device, at least 16 MiB;
64 MiB until there were 20. What ran out of device memory while it ran gets more for itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.core.memory import MIB

LOADS_KEPT = 200
LOADS_MIN = 20
MARGIN_BYTES_MIN = 16 * MIB
EXHAUSTED_BYTES_MIN = 256 * MIB
EXHAUSTED_SHARE = 0.1  # of graph and cache
PERCENT = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginKey:
    """Loads that are expected to be off by as much."""

    build: str
    architecture: str
    device_kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """Everything that was learned. A new value at every change."""

    residuals: Mapping[MarginKey, tuple[int, ...]] = field(default_factory=dict)  # real − measured, oldest first
    exhausted: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (model digest, device kind) → extra bytes

    def of(self, key: MarginKey, model_digest: str, *, unlearned_bytes: int) -> int:
        """What to keep on top of a measured need."""
        extra = self.exhausted.get((model_digest, key.device_kind), 0)
        seen = self.residuals.get(key, ())
        if len(seen) < LOADS_MIN:
            return unlearned_bytes + extra
        return max(MARGIN_BYTES_MIN, percentile(seen)) + extra

    def with_residual(self, key: MarginKey, residual_bytes: int) -> "Margins":
        """After a load whose report told how far its measurement was off."""
        seen = (*self.residuals.get(key, ()), residual_bytes)[-LOADS_KEPT:]
        return Margins(residuals={**self.residuals, key: seen}, exhausted=self.exhausted)

    def with_exhausted(self, model_digest: str, device_kind: str, *, graph_and_cache_bytes: int) -> "Margins":
        """After a process ran out of device memory while it ran: never the same layout unchanged."""
        key = (model_digest, device_kind)
        more = max(EXHAUSTED_BYTES_MIN, int(graph_and_cache_bytes * EXHAUSTED_SHARE))
        return Margins(residuals=self.residuals, exhausted={**self.exhausted, key: self.exhausted.get(key, 0) + more})

    def with_all(self, others: "Margins") -> "Margins":
        """These, and `others` in the place of whatever both know."""
        return Margins(
            residuals={**self.residuals, **others.residuals}, exhausted={**self.exhausted, **others.exhausted}
        )

    def since(self, before: "Margins") -> "Margins":
        """What is not as it was `before`."""
        return Margins(
            residuals={key: seen for key, seen in self.residuals.items() if seen != before.residuals.get(key)},
            exhausted={key: extra for key, extra in self.exhausted.items() if extra != before.exhausted.get(key)},
        )


NO_MARGINS = Margins()


def percentile(values: tuple[int, ...]) -> int:
    """The smallest of the values that 99 % of them do not exceed."""
    return sorted(values)[-(-len(values) * PERCENT // 100) - 1]
