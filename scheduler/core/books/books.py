"""The core's state: one owner, plain data. What may be done with it is in the modules beside this one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.core.books.effects import Effect, Note
from scheduler.core.books.events import ExplainAsked
from scheduler.core.books.load_jobs import LoadJob
from scheduler.core.books.observed import Observed
from scheduler.core.planning.candidates import MeasureKey, Placement, Refusal
from scheduler.core.sizes.ledger import Promise
from scheduler.core.sizes.margins import NO_MARGINS, Margins
from scheduler.core.values.constraints import NO_CONSTRAINTS, Constraints
from scheduler.core.values.demand import Demand
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.faults import Fault
from scheduler.core.values.keep_alive import ReplicaMemo
from scheduler.core.values.layouts import Layout
from scheduler.core.values.memory import MemoryReport
from scheduler.core.values.model_alias import ModelAlias
from scheduler.core.values.policy import Policy
from scheduler.core.values.routing_table import ModelRoute
from scheduler.core.values.view import NodeView

FORGOTTEN_MAX = 1024

# A placement and its generation: one process.
Life = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """The right to command."""

    fence: int
    leader_id: str


class StopState(StrEnum):
    """How far a stop is."""

    DRAINING = "draining"  # takes nothing new; running sequences end
    SAVING = "saving"  # the intent is being written down
    COMMANDED = "commanded"  # the host has been told
    RECOVERING = "recovering"  # the process is gone, its memory not yet seen to be back


@dataclass(slots=True, kw_only=True)
class Stop:
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
    has_failed: bool = False  # its host could not, and nobody knows when it will be gone
    recover_until_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The last placement decision about a model, kept for people who ask why."""

    at_s: float
    outcome: Placement | Refusal
    attempts: int  # loads that failed before it
    rounds: int  # reports that it needed
    constraints: Constraints = NO_CONSTRAINTS  # what it was held to


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Somebody wants to know where a model would go, and a report is missing."""

    asked: ExplainAsked
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """What a node counts now."""

    key: MeasureKey
    layout: Layout
    holds: Mapping[tuple[str, str], int]  # bytes by node and device: a context on each, and the process in RAM


@dataclass(slots=True, kw_only=True)
class Drain:
    """A node that is taken out of use."""

    since_s: float
    budget_s: float  # so long its sequences may go on
    tried: set[str] = field(default_factory=set)  # digests of models for which a replica elsewhere was asked for

    @property
    def over_s(self) -> float:
        """When nothing is waited for any more."""
        return self.since_s + self.budget_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A replica that served was gone, and nobody had asked it to go."""

    at_s: float
    life: Life
    served_s: float  # for so long it had


@dataclass(slots=True, kw_only=True)
class Failures:
    """How often a model's load failed lately, and until when the next one waits."""

    count: int
    until_s: float


@dataclass(slots=True, kw_only=True)
class Books:
    """Everything the core knows."""

    policy: Policy
    new_id: Callable[[], str]  # randomness is given, so that a run can be replayed
    observed: Observed
    leadership: Leadership | None = None
    no_leader_why: str = "leadership has not been settled yet"
    desired: dict[str, DesiredPlacement] = field(default_factory=dict)
    forgotten: dict[str, None] = field(default_factory=dict)  # placements whose record is to go, oldest first
    desired_unseen_since_s: dict[str, float] = field(default_factory=dict)  # placements whose node is not known
    lost_since_s: dict[str, float] = field(default_factory=dict)  # placements whose runner died
    devices_lost_since_s: dict[tuple[str, str], float] = field(default_factory=dict)  # (node, device) → reported lost
    jobs: dict[int, LoadJob] = field(default_factory=dict)
    jobs_begun: int = 0
    stops: dict[str, Stop] = field(default_factory=dict)
    memos: dict[str, ReplicaMemo] = field(default_factory=dict)
    margins: Margins = NO_MARGINS
    work: dict[str, tuple[float, float]] = field(default_factory=dict)  # placement → how busy it is, and as of when
    crashes: dict[tuple[str, str], tuple[Crash, ...]] = field(default_factory=dict)  # by digest and node
    poisoned: dict[Life, str] = field(default_factory=dict)  # replica → the request that ended it; oldest first
    reports: dict[MeasureKey, MemoryReport] = field(default_factory=dict)
    measuring: dict[str, Measuring] = field(default_factory=dict)  # by node id: one at a time
    failures: dict[str, Failures] = field(default_factory=dict)  # by model digest
    keep_failures: dict[str, Failures] = field(default_factory=dict)  # likewise: of loads that nobody asked for
    replaced_at_s: dict[str, float] = field(default_factory=dict)  # by model digest
    decisions: dict[str, Decision] = field(default_factory=dict)  # by model name
    constraints: dict[str, Constraints] = field(default_factory=dict)  # by model name: what commands have set
    file_constraints: Mapping[str, Constraints] = field(default_factory=dict)  # likewise: the operator's file
    questions: dict[str, Question] = field(default_factory=dict)  # caller id → what waits for a measurement
    refused_measures: dict[MeasureKey, Fault] = field(default_factory=dict)  # the last ones, for those who ask why
    drains: dict[str, Drain] = field(default_factory=dict)  # by node id
    aliases: dict[str, ModelAlias] | None = None  # by key; None: not read yet. They outlive leadership
    pending_aliases: dict[str, ModelAlias | None] = field(default_factory=dict)  # likewise: what is being written
    preloaded: set[str] = field(default_factory=set)  # model names whose preload has been ordered
    projector_tried_s: dict[str, float] = field(default_factory=dict)  # by model digest: the last such load
    move_tried_s: dict[str, float] = field(default_factory=dict)  # by model digest: the last load for a changed wish
    demand: dict[str, Demand] = field(default_factory=dict)  # by model digest
    # Gateway id → when it told, and the longest wait by model name.
    queue_waits: dict[str, tuple[float, Mapping[str, float]]] = field(default_factory=dict)
    waits_since_s: dict[str, float] = field(default_factory=dict)  # model name → since when requests wait too long
    scale_paused_until_s: dict[str, float] = field(default_factory=dict)  # by model digest
    largest_asked: dict[str, tuple[tuple[float, int], ...]] = field(default_factory=dict)  # digest → (when, num_ctx)
    routes: tuple[ModelRoute, ...] = ()
    routes_version: int = 0
    routes_aliases: tuple[ModelAlias, ...] | None = None  # as published with them
    effects: list[Effect] = field(default_factory=list)

    def forget_desired(self, placement_id: str) -> None:
        """A placement is not wanted any more; a store that has not heard of it yet does not bring it back."""
        self.desired.pop(placement_id, None)
        self.lost_since_s.pop(placement_id, None)
        self.forgotten[placement_id] = None
        while len(self.forgotten) > FORGOTTEN_MAX:
            del self.forgotten[next(iter(self.forgotten))]

    def emit(self, effect: Effect) -> None:
        """Ask the shell for something."""
        self.effects.append(effect)

    def note(self, event: str, **fields: object) -> None:
        """Have something logged and counted."""
        self.effects.append(Note(event=event, fields=fields))

    def node(self, node_id: str) -> NodeView | None:
        """A node by id."""
        return self.observed.nodes.get(node_id)

    def jobs_by_age(self) -> list[LoadJob]:
        """Oldest first: that is the order in which they are served."""
        return sorted(self.jobs.values(), key=lambda job: job.id)

    def job_of(self, placement_id: str, generation: int) -> LoadJob | None:
        """The load that this placement belongs to."""
        for job in self.jobs.values():
            record = job.record
            if record is not None and (record.placement_id, record.generation) == (placement_id, generation):
                return job
        return None

    def waiters(self) -> int:
        """Callers that wait for any load."""
        return sum(len(job.callers) for job in self.jobs.values())

    def remember_decision(self, job: LoadJob, outcome: Placement | Refusal, now_s: float) -> None:
        """Keep why, for people who ask."""
        self.decisions[job.model_name] = Decision(
            at_s=now_s, outcome=outcome, attempts=job.attempts, rounds=job.rounds, constraints=job.constraints
        )
