"""The core's state: one owner, plain data. What may be done with it is in the modules beside this one."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from scheduler.core.planning.candidates import MeasureFirst, MeasureKey, Placement, Refusal
from scheduler.core.sizes.ledger import Promise
from scheduler.core.sizes.margins import NO_MARGINS, Margins
from scheduler.core.state.effects import AnswerFailed, Effect, Note, RemoveDesired, SaveDesired
from scheduler.core.state.events import ExplainAsked
from scheduler.core.state.load_jobs import LoadJob, restart_pause_s
from scheduler.core.state.observed import Observed
from scheduler.core.values.constraints import NO_CONSTRAINTS, Constraints
from scheduler.core.values.demand import NO_DEMAND, ModelDemand
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.faults import Fault, not_leading
from scheduler.core.values.keep_alive import TrackedReplica
from scheduler.core.values.memory import MemoryReport
from scheduler.core.values.policy import Policy
from scheduler.core.values.routing_table import ModelAlias, ModelRoute, find_model
from scheduler.core.values.view import DeviceView, ModelFile, NodeView

FORGOTTEN_MAX = 1024

# A placement and its generation: one process.
Life = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderTerm:
    """The right to command."""

    fence: int
    leader_id: str


class StopState(StrEnum):
    """Progress of a stop."""

    DRAINING = "draining"  # takes nothing new; running sequences end
    SAVING = "saving"  # the intent is being written down
    COMMANDED = "commanded"  # the host has the command
    RECOVERING = "recovering"  # the process is gone, its memory not yet seen to be back


@dataclass(slots=True, kw_only=True)
class ReplicaStop:
    """A replica on its way out. Its routes are withdrawn, its bytes stay promised to the end."""

    placement_id: str
    generation: int
    node_id: str
    reason: str
    forced: bool  # do not wait for running sequences
    held: tuple[Promise, ...]  # by node: its own first, then those that lend to it; less and less of it
    state: StopState = StopState.DRAINING
    retry_at_s: float | None = None
    free_bytes_before: dict[tuple[str, str], int] = field(default_factory=dict)  # by node and device
    listed_before: set[tuple[str, str]] = field(default_factory=set)  # whose drivers listed its process
    has_failed: bool = False  # its host could not; its end is unknown
    recover_until_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The last placement decision about a model, kept for explanations, or one that would be taken now."""

    at_s: float
    outcome: Placement | MeasureFirst | Refusal | None  # None: there is none yet
    attempts: int = 0  # loads that failed before it
    rounds: int = 0  # reports that it needed
    constraints: Constraints = NO_CONSTRAINTS  # what it was held to


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingExplanation:
    """An explanation of a placement that waits for a report."""

    asked: ExplainAsked
    until_s: float


@dataclass(slots=True, kw_only=True)
class NodeDrain:
    """A node that is taken out of use."""

    since_s: float
    budget_s: float  # so long its sequences may go on
    tried: set[str] = field(default_factory=set)  # digests of models for which a replica elsewhere was asked for

    @property
    def over_s(self) -> float:
        """Return the end of the last pause."""
        return self.since_s + self.budget_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """End of a serving replica without a stop."""

    at_s: float
    life: Life
    model_name: str
    error: str  # of its end, for people
    served_s: float  # for so long it had


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailures:
    """Recent failures of a model's loads, and the end of the pause before the next one."""

    count: int = 0
    until_s: float = 0.0

    def once_more(self, now_s: float) -> "LoadFailures":
        """Return a copy after another failure."""
        return LoadFailures(count=self.count + 1, until_s=now_s + restart_pause_s(self.count + 1))

    def blocks(self, now_s: float) -> bool:
        """Return True if the next load has to wait."""
        return now_s < self.until_s


NO_FAILURES = LoadFailures()


@dataclass(slots=True, kw_only=True)
class ModelState:
    """State of a model, by the digest of its file."""

    demand: ModelDemand = NO_DEMAND
    failures: LoadFailures = NO_FAILURES
    keep_failures: LoadFailures = NO_FAILURES  # of loads without a request
    replaced_at_s: float = -inf  # the last reload with a larger context
    replacing_tried_s: dict[str, float] = field(default_factory=dict)  # reason → the last load in place of others
    is_spreading: bool = False  # a load makes one of its replicas that share a node superfluous
    scale_paused_until_s: float = -inf
    largest_asked: tuple[tuple[float, int], ...] = ()  # (when, num_ctx)


@dataclass(slots=True, kw_only=True)
class ClusterState:
    """Everything the core knows."""

    policy: Policy
    new_id: Callable[[], str]  # randomness is given, so that a run can be replayed
    observed: Observed
    leadership: LeaderTerm | None = None
    no_leader: Fault = field(default_factory=lambda: not_leading("leadership has not been settled yet"))
    desired: dict[str, DesiredPlacement] = field(default_factory=dict)
    forgotten: dict[str, None] = field(default_factory=dict)  # placements whose record is to go, oldest first
    desired_unseen_since_s: dict[str, float] = field(default_factory=dict)  # placements whose node is not known
    lost_since_s: dict[str, float] = field(default_factory=dict)  # placements whose runner died
    devices_lost_since_s: dict[tuple[str, str], float] = field(default_factory=dict)  # (node, device) → reported lost
    jobs: dict[int, LoadJob] = field(default_factory=dict)
    jobs_begun: int = 0
    stops: dict[str, ReplicaStop] = field(default_factory=dict)
    tracked: dict[str, TrackedReplica] = field(default_factory=dict)
    margins: Margins = NO_MARGINS
    work: dict[str, tuple[float, float]] = field(default_factory=dict)  # placement → how busy it is, and as of when
    crashes: dict[tuple[str, str], tuple[Crash, ...]] = field(default_factory=dict)  # by digest and node
    poisoned: dict[Life, str] = field(default_factory=dict)  # replica → the request that ended it; oldest first
    reports: dict[MeasureKey, MemoryReport] = field(default_factory=dict)
    measuring: dict[str, MeasureFirst] = field(default_factory=dict)  # by node id: one at a time
    models: defaultdict[str, ModelState] = field(default_factory=lambda: defaultdict(ModelState))  # by digest
    decisions: dict[str, Decision] = field(default_factory=dict)  # by model name
    constraints: dict[str, Constraints] = field(default_factory=dict)  # by model name: what commands have set
    file_constraints: Mapping[str, Constraints] = field(default_factory=dict)  # likewise: the operator's file
    questions: dict[str, PendingExplanation] = field(default_factory=dict)  # caller id → what waits for a measurement
    refused_measures: dict[MeasureKey, Fault] = field(default_factory=dict)  # the last ones, for explanations
    drains: dict[str, NodeDrain] = field(default_factory=dict)  # by node id
    aliases: dict[str, ModelAlias] | None = None  # by key; None: not read yet. They outlive leadership
    pending_aliases: dict[str, ModelAlias | None] = field(default_factory=dict)  # likewise: what is being written
    preloaded: set[str] = field(default_factory=set)  # model names whose preload has been ordered
    # Gateway id → time of its report, and the longest wait by model name.
    queue_waits: dict[str, tuple[float, Mapping[str, float]]] = field(default_factory=dict)
    waits_since_s: dict[str, float] = field(default_factory=dict)  # model name → since when requests wait too long
    routes: tuple[ModelRoute, ...] = ()
    routes_version: int = 0
    routes_aliases: tuple[ModelAlias, ...] | None = None  # as published with them
    routes_fence: int = 0  # likewise
    effects: list[Effect] = field(default_factory=list)

    def forget_desired(self, placement_id: str) -> None:
        """Drop the record of a placement; a store that still has it does not bring it back."""
        self.desired.pop(placement_id, None)
        self.lost_since_s.pop(placement_id, None)
        self.forgotten[placement_id] = None
        while len(self.forgotten) > FORGOTTEN_MAX:
            del self.forgotten[next(iter(self.forgotten))]

    def save_record(self, record: DesiredPlacement) -> None:
        """Put a record in place of the one before, and have it written. Only a leader writes."""
        assert self.leadership is not None, "only a leader writes"
        self.desired[record.placement_id] = record
        self.emit(SaveDesired(fence=self.leadership.fence, record=record))

    def remove_record(self, placement_id: str) -> None:
        """Drop the record of a placement here, and in the store if this scheduler leads."""
        self.forget_desired(placement_id)
        if self.leadership is not None:
            self.emit(RemoveDesired(fence=self.leadership.fence, placement_id=placement_id))

    def emit(self, effect: Effect) -> None:
        """Ask the shell for something."""
        self.effects.append(effect)

    def refuse(self, caller_id: str, fault: Fault) -> None:
        """Answer a caller with a fault."""
        self.effects.append(AnswerFailed(callers=(caller_id,), fault=fault))

    def note(self, event: str, **fields: object) -> None:
        """Have something logged and counted."""
        self.effects.append(Note(event=event, fields=fields))

    def node(self, node_id: str) -> NodeView | None:
        """Return a node by id."""
        return self.observed.nodes.get(node_id)

    def device(self, node_id: str, device_id: str) -> DeviceView | None:
        """Return a device by the ids of its node and its own."""
        node = self.node(node_id)
        return node.device(device_id) if node is not None else None

    def model_named(self, name: str) -> ModelFile | None:
        """Return the file of a name: a usable one before a broken one, then the newest."""
        return find_model(tuple(self.observed.nodes.values()), name)

    def jobs_by_age(self) -> list[LoadJob]:
        """Return the loads, oldest first: the order in which they are served."""
        return sorted(self.jobs.values(), key=lambda job: job.id)

    def job_of(self, placement_id: str, generation: int) -> LoadJob | None:
        """Return the load of a placement."""
        for job in self.jobs.values():
            record = job.record
            if record is not None and (record.placement_id, record.generation) == (placement_id, generation):
                return job
        return None

    def waiters(self) -> int:
        """Count the callers that wait for any load."""
        return sum(len(job.callers) for job in self.jobs.values())

    def remember_decision(self, job: LoadJob, outcome: Placement | Refusal, now_s: float) -> None:
        """Keep a decision for explanations."""
        self.decisions[job.model_name] = Decision(
            at_s=now_s,
            outcome=outcome,
            attempts=job.failed.count,
            rounds=job.rounds,
            constraints=job.target.constraints,
        )


def lost_keys(own: Mapping[str, object], stored: Mapping[str, object]) -> list[str]:
    """Return the keys under which a store has something other than its writer: it has lost the last writes."""
    return sorted(key for key in own.keys() | stored.keys() if own.get(key) != stored.get(key))
