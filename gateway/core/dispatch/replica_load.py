"""How busy a replica is, from its last report and from what this gateway did since."""

from dataclasses import dataclass, replace

from gateway.core.models.routes import ReplicaState


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """The estimate of one replica. A report replaces what was guessed since the one before."""

    state: ReplicaState
    slots_total: int
    slots_busy: int = 0
    queued: int = 0
    in_flight: int = 0  # requests of this gateway, exact
    started_since_report: int = 0
    ended_since_report: int = 0
    reachable: bool = True
    load_fraction: float = 0.0  # how far its load is, as it said itself; routes follow no load that closely

    @property
    def work(self) -> int:
        """Sequences that run or wait there, this gateway's unreported ones included."""
        guessed = self.slots_busy + self.queued + self.started_since_report - self.ended_since_report
        return max(guessed, self.in_flight, 0)

    @property
    def slots_free(self) -> int:
        """Slots that a request sent now would find free; 0 where nothing may be sent."""
        if self.state is not ReplicaState.READY or not self.reachable:
            return 0
        return max(self.slots_total - self.work, 0)


def reported(
    load: ReplicaLoad,
    *,
    state: ReplicaState,
    slots_total: int,
    slots_busy: int,
    queued: int,
    load_fraction: float = 0.0,
) -> ReplicaLoad:
    """The replica spoke: believe it."""
    return replace(
        load,
        state=state,
        slots_total=slots_total,
        slots_busy=slots_busy,
        queued=queued,
        load_fraction=load_fraction,
        started_since_report=0,
        ended_since_report=0,
        reachable=True,
    )


def started(load: ReplicaLoad) -> ReplicaLoad:
    """This gateway sent a request there."""
    return replace(load, in_flight=load.in_flight + 1, started_since_report=load.started_since_report + 1)


def ended(load: ReplicaLoad) -> ReplicaLoad:
    """A request of this gateway is over."""
    assert load.in_flight > 0
    return replace(load, in_flight=load.in_flight - 1, ended_since_report=load.ended_since_report + 1)


def saturated(load: ReplicaLoad) -> ReplicaLoad:
    """The replica refused a request as full: count it as full until it reports again.

    The end of the refused request frees nothing, nor do those of others while more wait there.
    """
    busy = load.slots_total + load.in_flight
    return replace(load, slots_busy=busy, started_since_report=0, ended_since_report=0)


def unreachable(load: ReplicaLoad) -> ReplicaLoad:
    """Its report stream broke, or a call could not connect."""
    return replace(load, reachable=False)
