"""Everything that the scheduler's core can ask of the world. The shell performs; outcomes come back as events."""

from collections.abc import Mapping
from dataclasses import dataclass

from common.spec.layout import Layout
from scheduler.core.planning.candidates import MeasureKey
from scheduler.core.planning.explanation import Explanation
from scheduler.core.planning.lending import Loans
from scheduler.core.sizes.margins import Margins
from scheduler.core.values.constraints import Constraints, ModelConstraints
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.faults import Fault
from scheduler.core.values.origins import Origin
from scheduler.core.values.routing_table import ModelAlias, ModelRoute
from scheduler.core.values.view import RunnerView


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerQueued:
    """Tell callers that their load waits for others."""

    callers: tuple[str, ...]
    position: int  # 1 is next
    waits_for: str = ""  # what must happen first
    eta_s: float | None = None  # seconds until it can serve; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLoading:
    """Tell callers how far their load is."""

    callers: tuple[str, ...]
    fraction: float
    bytes_done: int
    bytes_total: int
    waits_for: str = ""  # its files, if they are not there
    eta_s: float | None = None  # seconds until it can serve; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReady:
    """Final: the model's route has a replica for them."""

    callers: tuple[str, ...]
    model_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFailed:
    """Final: it did not work."""

    callers: tuple[str, ...]
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReplicas:
    """Final: the number of replicas that were ordered to stop, or that are still there."""

    caller_id: str
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerConstraints:
    """Final: what is set for these models now, and whether something was set before."""

    caller_id: str
    models: tuple[ModelConstraints, ...]
    was_set: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveDrain:
    """Write down that a node is out of use, or in use again (`budget_s` None); the caller hears of it afterwards."""

    fence: int
    caller_id: str
    node_id: str
    budget_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerAlias:
    """Final: the alias as it is written down now, and whether there was one before."""

    caller_id: str
    alias: ModelAlias | None
    was_set: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveAlias:
    """Write down an alias, or forget it; the caller hears of it afterwards, if there is one."""

    fence: int
    caller_id: str
    key: str
    alias: ModelAlias | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerExplained:
    """Final: why."""

    caller_id: str
    explanation: Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Have a host count a layout."""

    node_id: str
    address: str
    key: MeasureKey
    layout: Layout
    loans: Loans | None = None  # what other nodes lend meanwhile
    origin: Origin | None = None  # where the file's header is, if the node lacks it
    draft_origin: Origin | None = None  # likewise of the layout's draft model
    caller_id: str = ""  # the first caller that waits for it; empty: none


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveDesired:
    """Write a record before acting on it."""

    fence: int
    record: DesiredPlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveDesired:
    """Forget a record; nothing depends on the outcome."""

    fence: int
    placement_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveConstraints:
    """Write down, or forget, what is wanted of a model; the caller hears of it afterwards."""

    fence: int
    caller_id: str
    model_name: str
    constraints: Constraints | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveMargins:
    """Write down what was learned; nothing depends on the outcome."""

    fence: int
    margins: Margins  # only what is new


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRunner:
    """Have a host start a runner, or attach to the one that it has already."""

    fence: int
    leader_id: str
    address: str
    record: DesiredPlacement
    loans: Loans | None = None  # what other nodes lend to it first
    origin: Origin | None = None  # where the file is, if the node lacks it
    draft_origin: Origin | None = None  # likewise of the layout's draft model
    caller_id: str = ""  # the first caller that waits for it; empty: none
    is_extra: bool = False  # beside replicas that serve


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRunner:
    """Ask a runner itself whether it is there; its host is silent. An answer is an event, silence is none."""

    node_id: str
    runner: RunnerView


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearDevice:
    """Have a host test an excluded device again; the caller hears what came of it."""

    fence: int
    leader_id: str
    address: str
    caller_id: str
    node_id: str
    device_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcuseCrash:
    """Have a host blame no device for the end of a replica."""

    fence: int
    leader_id: str
    address: str
    node_id: str
    placement_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRunner:
    """Have a host drain and stop a runner."""

    fence: int
    leader_id: str
    node_id: str
    address: str
    placement_id: str
    generation: int
    drain_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRoutes:
    """Give every watcher this table."""

    version: int
    routes: tuple[ModelRoute, ...]
    aliases: tuple[ModelAlias, ...] | None = None  # by name; None: not known here, watchers keep theirs
    fence: int = 0  # of the leadership; 0: there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLeadership:
    """A host has obeyed a higher fence: stop leading, and lead again only above `high_water`."""

    high_water: int


@dataclass(frozen=True, slots=True)
class CheckLeadership:
    """The store no longer holds our fence: find out now, not at the next renewal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Log and count something that happened."""

    event: str
    fields: Mapping[str, object]


Answer = AnswerReplicas | AnswerConstraints | AnswerExplained | AnswerAlias  # to one question
Notice = AnswerQueued | AnswerLoading | AnswerReady | AnswerFailed | Answer | PublishRoutes | Note
Save = SaveDesired | SaveConstraints | SaveDrain | SaveAlias  # their outcome comes back as an event
Write = Save | RemoveDesired | SaveMargins
Order = Measure | StartRunner | StopRunner | AskRunner | ClearDevice | ExcuseCrash  # to a host or a runner
Effect = Notice | Write | Order | DropLeadership | CheckLeadership
