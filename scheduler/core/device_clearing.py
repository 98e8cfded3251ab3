"""An operator gives an excluded device another chance."""

from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.effects import ClearDevice
from scheduler.core.state.events import DeviceClearAsked
from scheduler.core.values.constraints import label_means
from scheduler.core.values.faults import device_not_found, invalid_value, unavailable
from scheduler.core.values.routing_table import find_model


def clear_device(state: ClusterState, event: DeviceClearAsked) -> None:
    """Find the device, and send its host to test it."""
    found = [
        (node, device)
        for node in state.observed.nodes.values()
        for device in node.devices
        if label_means(event.label, node, device)
    ]
    if state.leadership is None:
        fault = unavailable(state.no_leader_why)
    elif not found:
        model = find_model(tuple(state.observed.nodes.values()), event.label)
        fault = device_not_found(event.label, model_name=model.name if model is not None else "")
    elif len(found) > 1:
        names = ", ".join(f"{node.id}/{device.id}" for node, device in found)
        fault = invalid_value(f"several devices are called {event.label!r}: {names}")
    else:
        ((node, device),) = found
        state.emit(
            ClearDevice(
                fence=state.leadership.fence,
                leader_id=state.leadership.leader_id,
                address=node.address,
                caller_id=event.caller_id,
                node_id=node.id,
                device_id=device.id,
            )
        )
        return
    state.refuse(event.caller_id, fault)
