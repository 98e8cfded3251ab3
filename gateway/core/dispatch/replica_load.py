"""Load of a replica, from its last report and this gateway's own requests since."""

from dataclasses import dataclass, replace

from gateway.core.models.routes import ReplicaState


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """The estimate of one replica. A report replaces what was guessed since the one before."""

    state: ReplicaState
    slots_total: int
    slots_busy: int = 0
    queued: int = 0
    open_slots: tuple[int, ...] = ()  # busy ones that a request of each band would be given, the highest band first
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

    @property
    def slots_open(self) -> tuple[int, ...]:
        """Busy slots that a request of each band sent now would be given; a lower band is paused for it."""
        if self.state is not ReplicaState.READY or not self.reachable:
            return ()
        return tuple(max(slots - self.started_since_report, 0) for slots in self.open_slots)


def reported(
    load: ReplicaLoad,
    *,
    state: ReplicaState,
    slots_total: int,
    slots_busy: int,
    queued: int,
    open_slots: tuple[int, ...] = (),
    load_fraction: float = 0.0,
) -> ReplicaLoad:
    """Return the load as the replica reported it."""
    return replace(
        load,
        state=state,
        slots_total=slots_total,
        slots_busy=slots_busy,
        queued=queued,
        open_slots=open_slots,
        load_fraction=load_fraction,
        started_since_report=0,
        ended_since_report=0,
        reachable=True,
    )


def started(load: ReplicaLoad) -> ReplicaLoad:
    """Return the load after this gateway sent a request there."""
    return replace(load, in_flight=load.in_flight + 1, started_since_report=load.started_since_report + 1)


def ended(load: ReplicaLoad) -> ReplicaLoad:
    """Return the load after the end of a request of this gateway."""
    assert load.in_flight > 0
    return replace(load, in_flight=load.in_flight - 1, ended_since_report=load.ended_since_report + 1)


def saturated(load: ReplicaLoad) -> ReplicaLoad:
    """Return the load of a replica that refused a request as full: it counts as full until it reports again.

    The end of the refused request frees nothing, nor do those of others while more wait there.
    """
    busy = load.slots_total + load.in_flight
    return replace(load, slots_busy=busy, open_slots=(), started_since_report=0, ended_since_report=0)


def unreachable(load: ReplicaLoad) -> ReplicaLoad:
    """Return the load of a replica that broke its report stream, or that a call could not connect to."""
    return replace(load, reachable=False)
