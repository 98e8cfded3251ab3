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
from enum import Enum, auto

from common.errors import PlacementMismatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A placement on this node. `spec` is whatever must be equal for two starts to mean the same runner."""

    generation: int
    spec: bytes


class StartAction(Enum):
    """Action that a Start leads to."""

    SPAWN = auto()
    ATTACH = auto()
    REPLACE = auto()


def decide_start(running: Running | None, *, generation: int, spec: bytes) -> StartAction:
    """See the table above.

    Raises:
        PlacementMismatch: the caller's view is old, or it uses one generation for two specs.
    """
    if running is None:
        return StartAction.SPAWN
    if generation > running.generation:
        return StartAction.REPLACE
    if generation < running.generation:
        raise PlacementMismatch(f"generation {running.generation} of this placement runs, {generation} is older")
    if spec != running.spec:
        raise PlacementMismatch(f"generation {generation} of this placement runs with another model or layout")
    return StartAction.ATTACH


def check_stop(running: Running, *, generation: int) -> None:
    """See the table above.

    Raises:
        PlacementMismatch: a newer generation runs than the caller knows.
    """
    if generation < running.generation:
        raise PlacementMismatch(f"generation {running.generation} of this placement runs, {generation} is older")
