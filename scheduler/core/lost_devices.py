"""A device that is gone takes its placements along, whatever their runners say; nothing else is touched.

Drivers and servers may be silent for a moment: what stays lost for `device_lost_s` is gone. A replica on it takes
nothing new and goes when its sequences have ended; one that still waits for the device is ended by its host. A load on
it is planned again. The next plan does without the device, because a lost one is not usable.
"""

from common.spec.layout import Layout
from scheduler.core.loading.starting import give_up_start
from scheduler.core.sizes.splitting import DeviceKey
from scheduler.core.state.cluster_state import ClusterState, LeaderTerm
from scheduler.core.state.effects import ClearDevice
from scheduler.core.state.events import DeviceClearAsked
from scheduler.core.state.load_jobs import ON_HOST
from scheduler.core.stopping.stopping import order_stop
from scheduler.core.values.constraints import label_means
from scheduler.core.values.faults import device_not_found, invalid_value
from scheduler.core.values.view import SERVING_STATES, NodeView, cached_per_view

DEVICE_LOST_S = 5.0  # until a lost device of a node that reports counts as gone
REASON = "device_lost"


def see_lost(state: ClusterState, now_s: float) -> None:
    """Remember since when each device is reported as lost."""
    lost = {(node.id, device_id) for node in state.observed.nodes.values() for device_id in _lost_on(node)}
    since_s = state.devices_lost_since_s
    for key in since_s.keys() - lost:
        del since_s[key]
    for key in lost:
        since_s.setdefault(key, now_s)


@cached_per_view
def _lost_on(node: NodeView) -> tuple[str, ...]:
    return tuple(device.id for device in node.devices if device.lost)


def leave_lost(state: ClusterState, now_s: float) -> None:
    """Withdraw what lies on devices that are gone, as far as live reports tell."""
    gone = {
        key
        for key, since_s in state.devices_lost_since_s.items()
        if now_s >= since_s + DEVICE_LOST_S and state.observed.is_current(key[0])
    }
    if not gone:
        return
    for job in state.jobs_by_age():
        record = job.record
        if job.state in ON_HOST and record is not None and not gone.isdisjoint(_devices(record.node_id, record.layout)):
            give_up_start(state, job, reason=REASON, now_s=now_s)
    loading = {job.record.placement_id for job in state.jobs.values() if job.record is not None}
    for node_id, runner in list(state.observed.replicas()):
        # An untracked replica was stopped a moment ago, and no inventory has come since.
        is_served = runner.state in SERVING_STATES and runner.placement_id in state.tracked
        if is_served and runner.placement_id not in loading and not gone.isdisjoint(_devices(node_id, runner.layout)):
            order_stop(state, runner.placement_id, reason=REASON, now_s=now_s)


def _devices(node_id: str, layout: Layout) -> list[DeviceKey]:
    return [(part.node_id or node_id, part.device_id) for part in layout.devices]


def clear_device(state: ClusterState, event: DeviceClearAsked, term: LeaderTerm) -> None:
    """Find the device, and send its host to test it."""
    found = [
        (node, device)
        for node in state.observed.nodes.values()
        for device in node.devices
        if label_means(event.label, node, device)
    ]
    if not found:
        model = state.model_named(event.label)
        fault = device_not_found(event.label, model_name=model.name if model is not None else "")
    elif len(found) > 1:
        names = ", ".join(f"{node.id}/{device.id}" for node, device in found)
        fault = invalid_value(f"several devices are called {event.label!r}: {names}")
    else:
        ((node, device),) = found
        state.emit(
            ClearDevice(
                fence=term.fence,
                leader_id=term.leader_id,
                address=node.address,
                caller_id=event.caller_id,
                node_id=node.id,
                device_id=device.id,
            )
        )
        return
    state.refuse(event.caller_id, fault)
