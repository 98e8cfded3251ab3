"""Explanation of a placement, existing or planned: the answer of `explain`. Values only."""

from dataclasses import dataclass

from common.spec.speculation import Speculation
from scheduler.core.planning.candidates import Candidate, Placement, Refusal
from scheduler.core.values.constraint_origins import AppliedConstraint
from scheduler.core.values.faults import CrashRow


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimView:
    """A replica that has to go, and what that is likely to cost in seconds."""

    placement_id: str
    model_name: str
    node_id: str
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMemory:
    """A replica that is loaded, with what was counted on and what it holds."""

    placement_id: str
    node_id: str
    device_names: tuple[str, ...]
    context_tokens: int
    predicted_bytes: int  # 0: adopted, not planned here
    allocated_bytes: int
    pinned: bool
    speculation: Speculation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One decision, with the numbers as they were used."""

    model_name: str
    model_digest: str
    hypothetical: bool
    age_s: float
    outcome: str
    message: str
    decision: Placement | Refusal | None  # None: there is none yet
    candidates: tuple[Candidate, ...]
    device_names: dict[tuple[str, str], str]  # (node, device) → name for people
    victims: tuple[VictimView, ...] = ()
    rounds: int = 0
    attempts: int = 0
    replicas: tuple[ReplicaMemory, ...] = ()
    waits_for: str = ""
    constraints: tuple[AppliedConstraint, ...] = ()  # what it was held to
    crash_rows: tuple[CrashRow, ...] = ()
