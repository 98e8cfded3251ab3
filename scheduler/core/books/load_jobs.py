"""One load of one model, and everybody who waits for it.

    waiting → measuring → (evicting →) planned → starting → loading → ready | failed

A job belongs to the leader, not to a caller: callers attach and leave, and one that leaves changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.core.planning.candidates import MeasureKey, Placement
from scheduler.core.values.asked import NO_OPTIONS, Asked, LoadOptions
from scheduler.core.values.constraints import NO_CONSTRAINTS, Constraints
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import MemoryReport
from scheduler.core.values.origins import Origin


class LoadState(StrEnum):
    """Where a load stands."""

    WAITING = "waiting"  # for the next look at the plan
    MEASURING = "measuring"  # a host counts bytes for a layout
    EVICTING = "evicting"  # room is being made
    PLANNED = "planned"  # being written down
    STARTING = "starting"  # the host has been told
    LOADING = "loading"  # the runner says so
    READY = "ready"  # everybody who waits has been told
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
# A host has been told, or may have been.
ON_HOST = frozenset({_S.STARTING, _S.LOADING})
DONE = frozenset({_S.READY, _S.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a load is. Never falls within one load."""

    fraction: float = 0.0  # of the whole way, a fetch of the files included
    bytes_done: int = 0  # weights in memory
    bytes_total: int = 0

    @property
    def weights_fraction(self) -> float:
        """Of the load without a fetch before it; the last hundredth is the context."""
        return min(self.fraction, self.bytes_done / self.bytes_total) if self.bytes_total else self.fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWish:
    """What a load asks for itself, while it is planned as a lost replica was asked for."""

    asked: Asked
    context_tokens: int
    constraints: Constraints  # with the options


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """What a load waits for after replicas of its model crashed."""

    until_s: float
    length_s: float
    crashes: int  # in a row

    def __str__(self) -> str:
        """As an object of "waits for"; the same as long as it lasts."""
        which = "a crash" if self.crashes == 1 else f"the last of {self.crashes} crashes"
        return f"its restart {self.length_s:g} s after {which}"


@dataclass(slots=True, kw_only=True)
class LoadJob:
    """Mutable; owned by the core."""

    id: int
    model_name: str
    model_digest: str
    context_tokens: int
    reason: str = "resumed"  # why it began; unless somebody says so, because a former leader had begun it
    wanted_tokens: int | None = None  # what callers asked for; None: any replica will do
    keep_alive_ms: int | None
    options: LoadOptions = NO_OPTIONS
    constraints: Constraints = NO_CONSTRAINTS  # with the options
    instead_of: str = ""  # the lost placement whose wishes were taken over
    own: OwnWish | None = None  # None: nothing was taken over, or it was given up
    was_asked: bool = False  # by a caller, perhaps one that has left
    load_only: bool = False  # by nobody whose request follows
    is_extra: bool = False  # one replica more than those that serve; nobody waits for it
    may_evict: bool = True
    created_s: float
    started_s: float = 0.0  # when the host was told
    is_fetching: bool = False  # the host gets the files from another node first
    fetch_fraction: float = 0.0  # how far that is
    fetched_s: float = 0.0  # when that was over; 0: it had them
    origin: Origin | None = None  # where the host was told to get them; None: it had them
    failed_fetches: set[tuple[str, Origin]] = field(default_factory=set)  # node, and from where it could not
    moved_s: float  # last sign of progress; re-arms the stall timer
    state: LoadState = LoadState.WAITING
    callers: dict[str, None] = field(default_factory=dict)  # in order of arrival
    progress: Progress = field(default_factory=Progress)
    rounds: int = 0  # measurements that its plan has asked for
    attempts: int = 0  # loads that were refused for memory, or hosts that did not answer
    node_attempts: dict[str, int] = field(default_factory=dict)  # of these, by node
    failed_nodes: dict[str, str] = field(default_factory=dict)  # node → why it is not tried again
    story: list[str] = field(default_factory=list)  # every attempt that failed, for people
    last_fault: Fault | None = None  # of the last of them
    attempted: dict[MeasureKey, MemoryReport] = field(default_factory=dict)  # sizes that could not be allocated
    backoff: dict[tuple[str, str], float] = field(default_factory=dict)
    not_before_s: float = 0.0
    restart: Pause | None = None  # its model crashed a moment ago
    last_error_line: str = ""  # that its runner has logged
    was_reported: bool = False  # the host has shown the runner of this attempt
    resend_at_s: float | None = None  # the host did not answer
    waits_for: str = ""
    behind: tuple[int, ...] = ()  # loads that hold the devices, by id; it goes on when they are done
    busy_since_s: float | None = None  # only busy replicas could make room
    measuring: MeasureKey | None = None
    measure_faults: dict[MeasureKey, Fault] = field(default_factory=dict)
    placement: Placement | None = None
    record: DesiredPlacement | None = None
    position: int = 0  # last told to the callers
    told: str = ""  # likewise: what it waits for

    @property
    def callers_ask(self) -> Asked:
        """What a replica must have to do for those who wait."""
        own = self.own
        return Asked(context_tokens=self.wanted_tokens, options=self.options) if own is None else own.asked

    @property
    def first_caller(self) -> str:
        """Who waits for it longest; empty: nobody."""
        return next(iter(self.callers), "")

    def move(self, state: LoadState, now_s: float) -> None:
        """Change state.

        Raises:
            AssertionError: the table does not know this step; the text tells the job's story.
        """
        assert state in TRANSITIONS[self.state], (
            f"load {self.id} of {self.model_name}: {self.state} -> {state} "
            f"(attempt {self.attempts}, {self.waits_for!r})"
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
        """What was planned is of no use any more."""
        self.placement = None
        self.last_error_line = ""
        self.resend_at_s = None
        self.not_before_s = now_s + pause_s
        self.waits_for = "another attempt"
        self.move(LoadState.WAITING, now_s)

    def take_callers(self) -> tuple[str, ...]:
        """Everybody who waits; they are answered now and wait no longer."""
        callers = tuple(self.callers)
        self.callers.clear()
        return callers
