"""Stop of a replica: routes withdrawn, sequences ended, intent stored, process stopped, memory seen as free.

Only idle replicas are stopped, unless the stop is forced (a load that is stuck). Without leadership nothing is.

Memory returns device by device, on every node that the replica was on:

1. Its process is gone: from its host's reports, and on nodes that lend to it, what was lent is back.
2. RAM, and what shares it, is back with the process. A GPU is, once its driver has let go: the process has left the
   driver's list, or most of what it held is seen to be free.
A device that has come back is free for other loads, also before the others. One that takes too long is left to
the next report: what is available there is never more than it shows as free.
"""

from dataclasses import replace

from scheduler.core.planning.candidates import Placement
from scheduler.core.sizes.ledger import METAL_BACKENDS, Promise
from scheduler.core.sizes.splitting import DeviceKey
from scheduler.core.state.cluster_state import ClusterState, ReplicaStop, StopState
from scheduler.core.state.effects import StopRunner
from scheduler.core.state.events import StopEnded
from scheduler.core.state.promises import promises, replica_promises
from scheduler.core.values.desired import DesiredPlacement, Phase, record_of
from scheduler.core.values.faults import PLACEMENT_MISMATCH
from scheduler.core.values.view import DeviceKind, DeviceView, NodeView, RunnerView

RECOVERY_FRACTION = 0.75
DRAIN_S = 30.0
RECOVERY_S = 5.0
STOP_RETRY_S = 1.0


def order_stop(state: ClusterState, placement_id: str, *, reason: str, now_s: float, forced: bool = False) -> bool:
    """Withdraw a replica and stop it once it is idle. False: it is not there, or already going."""
    found = state.observed.replica(placement_id)
    if state.leadership is None or found is None:
        return False
    going = state.stops.get(placement_id)
    if going is not None:
        going.forced = going.forced or forced
        return False
    node_id, runner = found
    held = tuple(one for one in promises(state) if one.placement_id == placement_id)
    state.stops[placement_id] = ReplicaStop(
        placement_id=placement_id,
        generation=runner.generation,
        node_id=node_id,
        reason=reason,
        forced=forced,
        held=held or replica_promises(state, node_id, runner),
    )
    state.note("model.draining", model=runner.model_name, placement=placement_id, node=node_id, reason=reason)
    advance_stop(state, state.stops[placement_id], now_s)
    return True


def order_blind_stop(
    state: ClusterState, record: DesiredPlacement, held: tuple[Promise, ...], *, reason: str, now_s: float
) -> None:
    """Stop a start that its host never reported."""
    if state.leadership is None or record.placement_id in state.stops:
        return
    stop = ReplicaStop(
        placement_id=record.placement_id,
        generation=record.generation,
        node_id=record.node_id,
        reason=reason,
        forced=True,
        held=held,
    )
    state.stops[record.placement_id] = stop
    advance_stop(state, stop, now_s)


def advance_stop(state: ClusterState, stop: ReplicaStop, now_s: float) -> None:
    """Take the next step that is due."""
    if state.leadership is None or (stop.retry_at_s is not None and now_s < stop.retry_at_s):
        return
    found = state.observed.replica(stop.placement_id)
    runner = found[1] if found is not None and found[1].generation == stop.generation else None
    if stop.state is StopState.DRAINING and runner is None and stop.placement_id not in state.desired:
        _finish(state, stop)  # neither wanted nor seen: there is nothing to stop
    elif stop.state is StopState.DRAINING and _is_free(state, stop, runner):
        stop.state = StopState.SAVING
        state.save_record(_stopping_record(state, stop, runner))
    if stop.state is StopState.RECOVERING and _is_recovered(state, stop, runner, now_s):
        _finish(state, stop)


def _is_free(state: ClusterState, stop: ReplicaStop, runner: RunnerView | None) -> bool:
    """Return True if it serves no request, as far as live reports say."""
    if stop.forced or runner is None:
        return True
    return not runner.is_busy and state.observed.is_current(stop.node_id)


def _stopping_record(state: ClusterState, stop: ReplicaStop, runner: RunnerView | None) -> DesiredPlacement:
    record = state.desired.get(stop.placement_id)
    if record is None:
        assert runner is not None, "a replica that is stopped is either wanted or seen"
        record = record_of(stop.node_id, runner, Phase.STOPPING)
    return record.in_phase(Phase.STOPPING)


def on_saved(state: ClusterState, record: DesiredPlacement) -> None:
    """Command a stop whose intent is saved."""
    stop = state.stops.get(record.placement_id)
    if stop is None or stop.state is not StopState.SAVING or record.phase is not Phase.STOPPING:
        return
    _command(state, stop)


def on_save_failed(state: ClusterState, record: DesiredPlacement, now_s: float) -> None:
    """Retry a stop whose intent could not be saved."""
    stop = state.stops.get(record.placement_id)
    if stop is not None and stop.state is StopState.SAVING:
        stop.state = StopState.DRAINING
        stop.retry_at_s = now_s + STOP_RETRY_S


def _command(state: ClusterState, stop: ReplicaStop) -> None:
    assert state.leadership is not None, "stops end with leadership"
    node = state.node(stop.node_id)
    if node is None:
        _finish(state, stop)
        return
    stop.state = StopState.COMMANDED
    remember_before(state, stop)
    state.emit(
        StopRunner(
            fence=state.leadership.fence,
            leader_id=state.leadership.leader_id,
            node_id=stop.node_id,
            address=node.address,
            placement_id=stop.placement_id,
            generation=stop.generation,
            drain_ms=0 if stop.forced else round(DRAIN_S * 1000),
        )
    )


def on_stop_ended(state: ClusterState, event: StopEnded, now_s: float) -> None:
    """Record the end of a process, or try again as long as it is there.

    Its bytes stay promised until they are observed to be free. A newer generation runs: then the one we meant is gone.
    """
    stop = state.stops.get(event.placement_id)
    if stop is None or stop.state is not StopState.COMMANDED:
        return
    if event.fault is None:
        state.observed.forget_start(stop.placement_id)
        stop.state = StopState.RECOVERING
        stop.has_failed = False
        stop.recover_until_s = now_s + RECOVERY_S
        return
    state.note("stop.failed", placement=stop.placement_id, node=stop.node_id, why=event.fault.message)
    if event.fault.reason == PLACEMENT_MISMATCH:
        _finish(state, stop)
        return
    stop.state = StopState.DRAINING
    stop.has_failed = True
    stop.retry_at_s = now_s + STOP_RETRY_S


def _is_recovered(state: ClusterState, stop: ReplicaStop, runner: RunnerView | None, now_s: float) -> bool:
    """Return True if it is gone from the reports and its share of every device is free, or after the deadline."""
    if now_s >= stop.recover_until_s:
        return True
    if runner is None:
        take_back(state, stop)
    return not stop.held


def still_hold_what_is_needed(state: ClusterState, placement: Placement) -> bool:
    """Return True if a victim has not yet freed a device that the placement needs.

    One that cannot be stopped is not waited for: its bytes stay promised, and the next plan does without them.
    """
    needed = {(need.node_id, need.device_id) for need in placement.needs}
    for victim in placement.victims:
        stop = state.stops.get(victim)
        if stop is None or stop.has_failed:
            continue
        if stop.state is not StopState.RECOVERING or needed & devices_held(stop):
            return True
    return False


def _finish(state: ClusterState, stop: ReplicaStop) -> None:
    del state.stops[stop.placement_id]
    record = state.desired.get(stop.placement_id)
    if record is not None and record.generation == stop.generation:
        state.remove_record(stop.placement_id)
    state.tracked.pop(stop.placement_id, None)
    model = record.model_name if record is not None else ""
    state.note("model.evicted", model=model, placement=stop.placement_id, node=stop.node_id, reason=stop.reason)


def remember_before(state: ClusterState, stop: ReplicaStop) -> None:
    """Remember the state of its devices before the stop."""
    for promise in stop.held:
        for device_id in promise.device_bytes:
            device = state.device(promise.node_id, device_id)
            if device is None:
                continue
            key = promise.node_id, device_id
            stop.free_bytes_before[key] = device.free_bytes
            holder = device.holder(stop.placement_id)
            if holder is not None and holder.listed:
                stop.listed_before.add(key)


def take_back(state: ClusterState, stop: ReplicaStop) -> None:
    """Reduce the promises of a stop by the recovered bytes. Its runner is gone from its host's reports."""
    held = []
    for promise in stop.held:
        node = state.node(promise.node_id)
        if node is None:
            continue  # nothing is planned there
        still = {
            device_id: count
            for device_id, count in promise.device_bytes.items()
            if (device := node.device(device_id)) is not None and not _is_back(stop, promise, node, device)
        }
        if still:
            freed = {device_id: count for device_id, count in promise.freed_bytes.items() if device_id in still}
            held.append(replace(promise, device_bytes=still, freed_bytes=freed))
    stop.held = tuple(held)


def devices_held(stop: ReplicaStop) -> set[DeviceKey]:
    """Return the devices that still hold its memory."""
    return {(promise.node_id, device_id) for promise in stop.held for device_id in promise.device_bytes}


def _is_back(stop: ReplicaStop, promise: Promise, node: NodeView, device: DeviceView) -> bool:
    holder, key = device.holder(stop.placement_id), (node.id, device.id)
    if node.id != stop.node_id and holder is not None and not holder.listed:
        return False  # what lends it lives
    if not _recovers_late(device):
        return node.id == stop.node_id or holder is None
    if key in stop.listed_before and (holder is None or not holder.listed):
        return True
    risen = device.free_bytes - stop.free_bytes_before.get(key, 0)
    return risen >= RECOVERY_FRACTION * promise.freed_bytes.get(device.id, 0)


def _recovers_late(device: DeviceView) -> bool:
    """Return True for memory that drivers free late; RAM and devices that share it are free with the process's end."""
    return device.kind is DeviceKind.GPU and device.backend not in METAL_BACKENDS
