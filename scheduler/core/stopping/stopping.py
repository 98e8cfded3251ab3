"""How a replica goes: routes withdrawn, running sequences end, intent written, process stopped, memory seen to be back.

Only what serves nobody is stopped, unless the stop is forced (a load that is stuck). Without leadership nothing is.
"""

from scheduler.core.books.books import Books, Stop, StopState
from scheduler.core.books.effects import RemoveDesired, SaveDesired, StopRunner
from scheduler.core.books.events import DesiredSaved, DesiredSaveFailed, StopDone, StopFailed
from scheduler.core.books.promises import promises, replica_promises
from scheduler.core.planning.candidates import Placement
from scheduler.core.sizes.ledger import Promise
from scheduler.core.stopping.recovery import devices_held, remember_before, take_back
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.core.values.faults import PLACEMENT_MISMATCH
from scheduler.core.values.view import RunnerView


def order_stop(books: Books, placement_id: str, *, reason: str, now_s: float, forced: bool = False) -> bool:
    """Withdraw a replica and stop it once it is idle. False: it is not there, or already going."""
    found = books.observed.replica(placement_id)
    if books.leadership is None or found is None:
        return False
    going = books.stops.get(placement_id)
    if going is not None:
        going.forced = going.forced or forced
        return False
    node_id, runner = found
    held = tuple(one for one in promises(books) if one.placement_id == placement_id)
    books.stops[placement_id] = Stop(
        placement_id=placement_id,
        generation=runner.generation,
        node_id=node_id,
        reason=reason,
        forced=forced,
        held=held or replica_promises(books, node_id, runner),
    )
    books.note("model.draining", model=runner.model_name, placement=placement_id, node=node_id, reason=reason)
    advance_stop(books, books.stops[placement_id], now_s)
    return True


def order_blind_stop(
    books: Books, record: DesiredPlacement, held: tuple[Promise, ...], *, reason: str, now_s: float
) -> None:
    """Stop what a host was told to start and never reported."""
    if books.leadership is None or record.placement_id in books.stops:
        return
    stop = Stop(
        placement_id=record.placement_id,
        generation=record.generation,
        node_id=record.node_id,
        reason=reason,
        forced=True,
        held=held,
    )
    books.stops[record.placement_id] = stop
    advance_stop(books, stop, now_s)


def advance_stop(books: Books, stop: Stop, now_s: float) -> None:
    """Take the next step that is due."""
    if books.leadership is None or (stop.retry_at_s is not None and now_s < stop.retry_at_s):
        return
    found = books.observed.replica(stop.placement_id)
    runner = found[1] if found is not None and found[1].generation == stop.generation else None
    if stop.state is StopState.DRAINING and runner is None and stop.placement_id not in books.desired:
        _finish(books, stop)  # neither wanted nor seen: there is nothing to stop
    elif stop.state is StopState.DRAINING and _is_free(books, stop, runner):
        stop.state = StopState.SAVING
        books.emit(SaveDesired(fence=books.leadership.fence, record=_stopping_record(books, stop, runner)))
    if stop.state is StopState.RECOVERING and _is_recovered(books, stop, runner, now_s):
        _finish(books, stop)


def _is_free(books: Books, stop: Stop, runner: RunnerView | None) -> bool:
    """Whether nobody is served by it: as far as live reports tell."""
    if stop.forced or runner is None:
        return True
    return not runner.is_busy and books.observed.is_current(stop.node_id)


def _stopping_record(books: Books, stop: Stop, runner: RunnerView | None) -> DesiredPlacement:
    record = books.desired.get(stop.placement_id)
    if record is None:
        assert runner is not None, "a replica that is stopped is either wanted or seen"
        record = DesiredPlacement(
            placement_id=stop.placement_id,
            generation=stop.generation,
            phase=Phase.STOPPING,
            node_id=stop.node_id,
            model_name=runner.model_name,
            model_digest=runner.model_digest,
            layout=runner.layout,
        )
    record = record.in_phase(Phase.STOPPING)
    books.desired[stop.placement_id] = record
    return record


def on_saved(books: Books, event: DesiredSaved) -> None:
    """The intent is written: act."""
    stop = books.stops.get(event.placement_id)
    if stop is None or stop.state is not StopState.SAVING or event.phase is not Phase.STOPPING:
        return
    _command(books, stop)


def on_save_failed(books: Books, event: DesiredSaveFailed, now_s: float) -> None:
    """The intent could not be written: not now."""
    stop = books.stops.get(event.placement_id)
    if stop is not None and stop.state is StopState.SAVING:
        stop.state = StopState.DRAINING
        stop.retry_at_s = now_s + books.policy.stop_retry_s


def _command(books: Books, stop: Stop) -> None:
    assert books.leadership is not None, "stops end with leadership"
    node = books.node(stop.node_id)
    if node is None:
        _finish(books, stop)
        return
    stop.state = StopState.COMMANDED
    remember_before(books, stop)
    books.emit(
        StopRunner(
            fence=books.leadership.fence,
            leader_id=books.leadership.leader_id,
            address=node.address,
            placement_id=stop.placement_id,
            generation=stop.generation,
            drain_ms=0 if stop.forced else round(books.policy.drain_s * 1000),
        )
    )


def on_stop_done(books: Books, event: StopDone, now_s: float) -> None:
    """The process is gone; its bytes stay promised until they are seen to be back."""
    stop = books.stops.get(event.placement_id)
    if stop is None or stop.state is not StopState.COMMANDED:
        return
    books.observed.forget_start(stop.placement_id)
    stop.state = StopState.RECOVERING
    stop.has_failed = False
    stop.recover_until_s = now_s + books.policy.recovery_s


def on_stop_failed(books: Books, event: StopFailed, now_s: float) -> None:
    """Try again as long as it is there. A newer generation runs: then the one we meant is gone."""
    stop = books.stops.get(event.placement_id)
    if stop is None or stop.state is not StopState.COMMANDED:
        return
    books.note("stop.failed", placement=stop.placement_id, node=stop.node_id, why=event.fault.message)
    if event.fault.reason == PLACEMENT_MISMATCH:
        _finish(books, stop)
        return
    stop.state = StopState.DRAINING
    stop.has_failed = True
    stop.retry_at_s = now_s + books.policy.stop_retry_s


def _is_recovered(books: Books, stop: Stop, runner: RunnerView | None, now_s: float) -> bool:
    """Gone from the node's reports, and its share of every device is free again; or waited for long enough."""
    if now_s >= stop.recover_until_s:
        return True
    if runner is None:
        take_back(books, stop)
    return not stop.held


def still_hold_what_is_needed(books: Books, placement: Placement) -> bool:
    """Whether one of the victims has not yet given back a device that the placement needs.

    One that cannot be stopped is waited for by nobody: its bytes stay promised, and the next plan does without them.
    """
    needed = {(need.node_id or placement.node_id, need.device_id) for need in placement.needs}
    for victim in placement.victims:
        stop = books.stops.get(victim)
        if stop is None or stop.has_failed:
            continue
        if stop.state is not StopState.RECOVERING or needed & devices_held(stop):
            return True
    return False


def _finish(books: Books, stop: Stop) -> None:
    del books.stops[stop.placement_id]
    record = books.desired.get(stop.placement_id)
    if record is not None and record.generation == stop.generation:
        books.forget_desired(stop.placement_id)
        if books.leadership is not None:
            books.emit(RemoveDesired(fence=books.leadership.fence, placement_id=stop.placement_id))
    books.memos.pop(stop.placement_id, None)
    model = record.model_name if record is not None else ""
    books.note("model.evicted", model=model, placement=stop.placement_id, node=stop.node_id, reason=stop.reason)
