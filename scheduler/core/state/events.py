"""Everything that can happen to the scheduler's core. Failures are events too."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.spec.load_options import NO_LOAD_OPTIONS, LoadOptions
from scheduler.core.planning.candidates import MeasureKey
from scheduler.core.sizes.margins import NO_MARGINS, Margins
from scheduler.core.state.effects import Save
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import MemoryReport
from scheduler.core.values.routing_table import ModelAlias
from scheduler.core.values.view import NodeView, RunnerView


@dataclass(frozen=True, slots=True, kw_only=True)
class InventorySeen:
    """Discovery sent its inventory."""

    nodes: tuple[NodeView, ...]
    uptime_s: float  # of the discovery process: a young one may not know every node yet
    silent: frozenset[str] = frozenset()  # nodes that have not reported since the inventory before
    removed: frozenset[str] = frozenset()  # nodes that an operator has removed: they are not waited for


@dataclass(frozen=True, slots=True)
class InventoryLost:
    """The watch on discovery broke; the last view stays true until contradicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsureRequested:
    """A caller wants a replica of a model."""

    caller_id: str
    model_name: str
    context_tokens: int | None = None
    keep_alive_ms: int | None = None
    options: LoadOptions = NO_LOAD_OPTIONS
    load_only: bool = False  # no request follows
    move_to: str = ""  # an operator's: on this node, in place of a replica elsewhere
    at_once: bool = False  # an operator's: earlier crashes and failures of the model do not count any more


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerLeft:
    """A caller does not wait any longer."""

    caller_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloadRequested:
    """A caller wants every replica of a model stopped."""

    caller_id: str
    model_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintsAsked:
    """A caller wants to know what is set for a model; an empty name means all of them."""

    caller_id: str
    model_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintsPut:
    """A caller sets what is wanted of a model; None: it forgets what was set."""

    caller_id: str
    model_name: str
    constraints: Constraints | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainAsked:
    """A caller wants to know why: of the last decision, or of one that is worked out for it."""

    caller_id: str
    model_name: str
    context_tokens: int | None = None
    options: LoadOptions = NO_LOAD_OPTIONS
    last: bool = False
    wait_s: float = 0.0  # how long a missing report may be waited for
    slots: int = 0  # of the replica that is asked about; 0: as it would be without the question


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClearAsked:
    """A caller wants an excluded device to have another chance."""

    caller_id: str
    label: str  # id or name, alone or behind "node/"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAsked:
    """A caller wants a node to be taken out of use, or to come back."""

    caller_id: str
    node_id: str
    drain: bool
    budget_s: float | None = None  # so long its sequences may go on; None: as long as the policy says


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasPut:
    """A caller wants a second name for a model; `target` None: no longer."""

    caller_id: str
    name: str
    target: str | None


@dataclass(frozen=True, slots=True)
class AliasesRead:
    """Content of the store, for a scheduler that does not lead."""

    aliases: Mapping[str, ModelAlias]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuesReported:
    """A gateway reported the wait of its oldest request for a slot, by model. A model without an entry has none."""

    gateway_id: str
    waits_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashesBlamed:
    """A gateway reported replicas that crashed, perhaps not observed yet, because of a request that it now refuses."""

    request: str  # the same name for the same request
    lives: tuple[tuple[str, int], ...]  # placements with their generations


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureEnded:
    """A host has counted, or could not."""

    node_id: str
    key: MeasureKey
    found: MemoryReport | Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveEnded:
    """The store holds what was to be saved, or has forgotten it."""

    save: Save
    fault: Fault | None = None  # it did not take it; STALE_FENCE if another scheduler may lead


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerReported:
    """A host reported the progress of a start that we ordered."""

    node_id: str
    runner: RunnerView


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerAnswered:
    """A runner whose node left the inventory answered us itself."""

    placement_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailed:
    """A start was refused, or its stream ended without an outcome."""

    placement_id: str
    generation: int
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class StopEnded:
    """The process is gone."""

    placement_id: str
    generation: int
    fault: Fault | None = None  # the host did not stop it, or did not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipGained:
    """This scheduler leads with this fence; `desired` is what the store holds."""

    fence: int
    leader_id: str
    desired: tuple[DesiredPlacement, ...]
    constraints: Mapping[str, Constraints] = field(default_factory=dict)
    margins: Margins = NO_MARGINS
    drains: Mapping[str, float] = field(default_factory=dict)  # node id → how long its sequences may go on
    aliases: Mapping[str, ModelAlias] | None = field(default_factory=dict)  # by key; None: never had any


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipLost:
    """This scheduler does not lead, and what callers are refused with."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class TimePassed:
    """A moment that the core asked for (`wake_at_s`) has come."""


Call = EnsureRequested | CallerLeft | UnloadRequested | ExplainAsked | QueuesReported | CrashesBlamed
Command = ConstraintsAsked | ConstraintsPut | DrainAsked | AliasPut | DeviceClearAsked  # for the leader
Outcome = AliasesRead | MeasureEnded | SaveEnded | RunnerReported | RunnerAnswered | StartFailed | StopEnded
Event = InventorySeen | InventoryLost | LeadershipGained | LeadershipLost | TimePassed | Call | Command | Outcome
