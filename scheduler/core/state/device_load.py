"""Number of replicas that decode on a device, as a mean of the last minute."""

import math

from scheduler.core.sizes.splitting import DeviceKey
from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.values.view import RunnerView

MEAN_S = 60.0
QUIET = 0.02  # a mean that has faded to this is none


def see_work(state: ClusterState, runner: RunnerView, now_s: float) -> None:
    """Take in one fresh report of a replica."""
    busy = 1.0 if runner.slots_busy else 0.0
    mean, at_s = state.work.get(runner.placement_id, (0.0, now_s))
    mean = busy + (mean - busy) * math.exp(-(now_s - at_s) / MEAN_S)
    state.work[runner.placement_id] = mean, now_s


def decoding(state: ClusterState) -> dict[DeviceKey, float]:
    """Return the load of each busy device. Replicas that are gone are dropped here."""
    found: dict[DeviceKey, float] = {}
    present = set()
    for node_id, runner in state.observed.replicas():
        present.add(runner.placement_id)
        mean = state.work.get(runner.placement_id, (0.0, 0.0))[0]
        if mean > QUIET:
            for part in runner.layout.devices:
                key = (part.node_id or node_id, part.device_id)
                found[key] = found.get(key, 0.0) + mean
    for gone in state.work.keys() - present:
        del state.work[gone]
    return found
