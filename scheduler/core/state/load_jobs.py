"""One load of one model, and the callers that wait for it.

    waiting → measuring → (evicting →) planned → starting → loading → ready | failed

A job belongs to the leader, not to a caller: callers attach and leave, and one that leaves changes nothing.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from scheduler.core.planning.candidates import MeasureKey, Placement
from scheduler.core.values.asked import Asked
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import MemoryReport
from scheduler.core.values.origins import Origin

LOAD_ATTEMPTS_MAX = 3  # on one node; then the next candidate
LOAD_NODES_MAX = 4  # a load that fails on so many nodes is the model's own fault
RESTART_BACKOFF_S = 0.5
RESTART_BACKOFF_S_MAX = 30.0


class LoadState(StrEnum):
    """State of a load."""

    WAITING = "waiting"  # for the next look at the plan
    MEASURING = "measuring"  # a host counts bytes for a layout
    EVICTING = "evicting"  # room is being made
    PLANNED = "planned"  # being written down
    STARTING = "starting"  # the host has the command
    LOADING = "loading"  # the runner says so
    READY = "ready"  # all callers are answered
    FAILED = "failed"  # no attempt is left, or none can help


_S = LoadState
TRANSITIONS: Mapping[LoadState, frozenset[LoadState]] = {
    # A load that a former leader began is taken up where it stands.
    _S.WAITING: frozenset({_S.MEASURING, _S.EVICTING, _S.PLANNED, _S.STARTING, _S.READY, _S.FAILED}),
    _S.MEASURING: frozenset({_S.WAITING, _S.FAILED}),
    _S.EVICTING: frozenset({_S.WAITING, _S.FAILED}),
    _S.PLANNED: frozenset({_S.STARTING, _S.WAITING, _S.FAILED}),
    _S.STARTING: frozenset({_S.LOADING, _S.READY, _S.WAITING, _S.FAILED}),
    _S.LOADING: frozenset({_S.READY, _S.STARTING, _S.WAITING, _S.FAILED}),
    _S.READY: frozenset(),
    _S.FAILED: frozenset(),
}
# Nothing is promised on a device yet.
UNPLACED = frozenset({_S.WAITING, _S.MEASURING, _S.EVICTING})
# A host has the command, or may have it.
ON_HOST = frozenset({_S.STARTING, _S.LOADING})
DONE = frozenset({_S.READY, _S.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a load. Never falls within one load."""

    fraction: float = 0.0  # of the whole way, a fetch of the files included
    bytes_done: int = 0  # weights in memory
    bytes_total: int = 0

    @property
    def weights_fraction(self) -> float:
        """Return the fraction of the load without a fetch before it; the last hundredth is the context."""
        return min(self.fraction, self.bytes_done / self.bytes_total) if self.bytes_total else self.fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTarget:
    """Requirements of a load, with the constraints and the context that follow from them."""

    asked: Asked  # by callers; of a replacement, merged with those of the lost replica
    context_tokens: int
    constraints: Constraints  # with the options


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPause:
    """Pause of a load after replicas of its model crashed."""

    until_s: float
    length_s: float
    crashes: int  # in a row

    def __str__(self) -> str:
        """Return it as an object of "waits for"; the text is the same as long as the pause lasts."""
        which = "a crash" if self.crashes == 1 else f"the last of {self.crashes} crashes"
        return f"its restart {self.length_s:g} s after {which}"


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One start of the load's placement, with the fetch before it. The next start has a new one."""

    sent_s: float = 0.0  # when the command was sent
    resend_at_s: float | None = None  # the host did not answer
    was_reported: bool = False  # the host has shown its runner
    has_loaded: bool = False  # its runner had, by its last report
    last_error_line: str = ""  # that its runner has logged
    is_fetching: bool = False  # the host gets the files from another node first
    fetch_fraction: float = 0.0
    fetched_s: float = 0.0  # when the fetch was over; 0: nothing was fetched

    @property
    def loading_since_s(self) -> float:
        """Return the time since which the files are read into memory."""
        return max(self.sent_s, self.fetched_s)


@dataclass(slots=True, kw_only=True)
class JobFailures:
    """Failures within one load: the next plan avoids them, and explanations name them."""

    count: int = 0  # loads that were refused for memory, or hosts that did not answer
    by_node: Counter[str] = field(default_factory=Counter)  # of these
    nodes: dict[str, str] = field(default_factory=dict)  # excluded node → why
    fetches: set[tuple[str, Origin]] = field(default_factory=set)  # node, and from where it could not fetch
    measures: dict[MeasureKey, Fault] = field(default_factory=dict)
    sizes: dict[MeasureKey, MemoryReport] = field(default_factory=dict)  # that could not be allocated
    backoff: dict[tuple[str, str], float] = field(default_factory=dict)  # (node, device) → fraction to leave free
    draft: str = ""  # why the draft model could not be fetched; the next plans do without it
    story: list[str] = field(default_factory=list)  # every attempt that failed, for people
    last_fault: Fault | None = None

    def add(self, node_id: str, fault: Fault) -> None:
        """Record the failure of the present attempt on a node."""
        self.story.append(f"attempt {self.count} on {node_id}: {fault.message}")
        self.last_fault = fault

    def leave_free(self, node_id: str, device_id: str, step: float) -> None:
        """Leave this fraction more of a device free."""
        key = (node_id, device_id)
        self.backoff[key] = self.backoff.get(key, 0.0) + step

    def as_fault(self, fault: Fault) -> Fault:
        """Return the last fault with all attempts in its text."""
        return replace(fault, message="; ".join(self.story))


@dataclass(slots=True, kw_only=True)
class LoadJob:
    """Mutable; owned by the core."""

    id: int
    model_name: str
    model_digest: str
    target: LoadTarget
    own: LoadTarget | None = None  # without the replaced replica's; None: nothing was taken over, or it was given up
    reason: str = "resumed"  # why it began; the default: a former leader had begun it
    keep_alive_ms: int | None
    instead_of: str = ""  # the lost placement whose options were taken over
    was_asked: bool = False  # by a caller, perhaps one that has left
    load_only: bool = False  # no request follows
    moves: str = ""  # placement that ends as soon as this one serves
    is_extra: bool = False  # one replica more than those that serve; no caller waits for it
    may_evict: bool = True
    created_s: float
    callers: dict[str, None] = field(default_factory=dict)  # in order of arrival
    state: LoadState = LoadState.WAITING
    progress: Progress = field(default_factory=Progress)
    moved_s: float  # last sign of progress; re-arms the stall timer
    shown: tuple[int, str] = (0, "")  # last sent to the callers: the position, and what it waits for
    # Waiting and planning.
    not_before_s: float = 0.0
    restart: CrashPause | None = None  # its model crashed a moment ago
    waits_for: str = ""
    behind: tuple[int, ...] = ()  # loads that hold the devices, by id; it goes on when they are done
    busy_since_s: float | None = None  # only busy replicas could make room
    measuring: MeasureKey | None = None
    rounds: int = 0  # measurements that its plan has asked for
    placement: Placement | None = None
    # Starts of its placement.
    record: DesiredPlacement | None = None
    origin: Origin | None = None  # where the host gets the files; None: it had them
    draft_origin: Origin | None = None  # likewise of the layout's draft model
    attempt: Attempt = field(default_factory=Attempt)
    failed: JobFailures = field(default_factory=JobFailures)

    @property
    def callers_ask(self) -> Asked:
        """Return the requirements of the waiting callers."""
        return (self.own or self.target).asked

    @property
    def first_caller(self) -> str:
        """Return the caller that has waited longest; empty: none waits."""
        return next(iter(self.callers), "")

    def move(self, state: LoadState, now_s: float) -> None:
        """Change state.

        Raises:
            AssertionError: the table does not have this step; the text has the job's history.
        """
        assert state in TRANSITIONS[self.state], (
            f"load {self.id} of {self.model_name}: {self.state} -> {state} "
            f"(attempt {self.failed.count}, {self.waits_for!r})"
        )
        # Steps among the states in which nothing has begun are no progress.
        if not {self.state, state} <= UNPLACED:
            self.moved_s = now_s
        self.state = state

    def advance(self, said: Progress, now_s: float) -> bool:
        """Take in progress; True if it is news."""
        known = self.progress
        progress = Progress(
            fraction=min(1.0, max(known.fraction, said.fraction)),
            bytes_done=max(known.bytes_done, said.bytes_done),
            bytes_total=said.bytes_total or known.bytes_total,  # files that are fetched hold more than weights
        )
        if progress == known:
            return False
        self.progress = progress
        self.moved_s = now_s
        return True

    def plan_again(self, now_s: float, *, pause_s: float) -> None:
        """Discard the plan and make a new one."""
        self.placement = None
        self.not_before_s = now_s + pause_s
        self.waits_for = "another attempt"
        self.move(LoadState.WAITING, now_s)

    def take_callers(self) -> tuple[str, ...]:
        """Remove and return all callers; they are answered now."""
        callers = tuple(self.callers)
        self.callers.clear()
        return callers


def restart_pause_s(failures: int) -> float:
    """Return the pause after so many failures in a row."""
    return min(RESTART_BACKOFF_S * 2.0 ** (failures - 1), RESTART_BACKOFF_S_MAX)
