"""Decisions about Start and Stop when the placement may already be on this node. Pure.

| a runner of this placement is | Start | Stop |
|---|---|---|
| not here | spawn | done |
| of the same generation, same spec | attach | stop it |
| of the same generation, other spec | refuse | stop it |
| of a lower generation | replace it | stop it |
| of a higher generation | refuse | refuse |
"""

from dataclasses import dataclass

from common.errors import PlacementMismatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A placement on this node. `spec` is whatever must be equal for two starts to mean the same runner."""

    generation: int
    spec: bytes


def attaches(running: Running | None, *, generation: int, spec: bytes) -> bool:
    """Return True if a Start means the runner that is here; else one is spawned, in place of a lower generation.

    Raises:
        PlacementMismatch: the caller's view is old, or it uses one generation for two specs.
    """
    if running is None or generation > running.generation:
        return False
    if generation < running.generation:
        raise PlacementMismatch(f"generation {running.generation} of this placement runs, {generation} is older")
    if spec != running.spec:
        raise PlacementMismatch(f"generation {generation} of this placement runs with another model or layout")
    return True


def check_stop(running: Running, *, generation: int) -> None:
    """See the table above.

    Raises:
        PlacementMismatch: a newer generation runs than the caller knows.
    """
    if generation < running.generation:
        raise PlacementMismatch(f"generation {running.generation} of this placement runs, {generation} is older")
