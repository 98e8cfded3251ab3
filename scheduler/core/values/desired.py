"""Desired placements, stored before any action."""

import hashlib
from dataclasses import dataclass, replace
from enum import StrEnum

from common.spec.layout import Layout
from scheduler.core.values.asked import NOTHING_ASKED, Asked
from scheduler.core.values.memory import MemoryReport
from scheduler.core.values.view import RunnerView


class Phase(StrEnum):
    """Progress of a placement. The next leader continues from it."""

    STARTING = "starting"  # Start may or may not have been sent: send it again
    RUNNING = "running"  # was seen ready
    STOPPING = "stopping"  # Stop may or may not have been sent: send it again
    LOST = "lost"  # its runner died; the next load of the model takes the next generation


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredPlacement:
    """One placement and the generation that is wanted of it."""

    placement_id: str
    generation: int
    phase: Phase
    node_id: str
    model_name: str
    model_digest: str
    layout: Layout
    planned: MemoryReport | None = None  # what the plan counted on; None: adopted, not planned here
    keep_alive_ms: int | None = None  # newest that was asked of the scheduler itself; None: nothing asked
    keep_alive_heard: int = 0  # how many the runner had been asked for by then
    asked: Asked = NOTHING_ASKED  # by the request that it was loaded for; what takes its place is asked the same

    def in_phase(self, phase: Phase) -> "DesiredPlacement":
        """Return a copy in a later phase."""
        return replace(self, phase=phase)

    def with_keep_alive(self, keep_alive_ms: int, heard: int) -> "DesiredPlacement":
        """Return a copy with a newer keep_alive."""
        return replace(self, keep_alive_ms=keep_alive_ms, keep_alive_heard=heard)

    @property
    def spec_digest(self) -> str:
        """Return a digest of everything that must not change within a generation."""
        spec = repr((self.node_id, self.model_digest, self.layout))
        return hashlib.sha256(spec.encode()).hexdigest()


def record_of(node_id: str, runner: RunnerView, phase: Phase) -> DesiredPlacement:
    """Return the record of a replica that was not planned here."""
    return DesiredPlacement(
        placement_id=runner.placement_id,
        generation=runner.generation,
        phase=phase,
        node_id=node_id,
        model_name=runner.model_name,
        model_digest=runner.model_digest,
        layout=runner.layout,
        asked=runner.asked,
    )
