"""How long a token takes where, and which devices count as equally fast. Pure."""

from collections.abc import Mapping, Sequence

from scheduler.core.facts import ModelFacts
from scheduler.core.splitting import DeviceKey
from scheduler.core.view import DeviceKind, DeviceView, NodeView

SAME_SPEED = 0.8  # within 20 % of the fastest of a class
SAME_TIME = 1.1  # within 10 %
# Where speeds are not known all devices of a kind count as equal, and a GPU as faster than what computes in RAM.
NOMINAL_BYTES_S = {DeviceKind.GPU: 400e9, DeviceKind.INTEGRATED: 80e9, DeviceKind.CPU: 40e9}
CLASS_ORDER = {DeviceKind.GPU: 0, DeviceKind.INTEGRATED: 1, DeviceKind.CPU: 2}

OwnedDevice = tuple[NodeView, DeviceView]


def speed_classes(devices: Sequence[OwnedDevice], *, merged: bool = False) -> dict[DeviceKey, int]:
    """Class by device, 0 first: discrete before integrated, then by speed.

    `merged`: the distinction of kinds is dropped; the user has decided how many layers go to devices.
    """
    speeds_known = all(device.speed_bytes_s > 0 for _, device in devices)

    def rank(one: OwnedDevice) -> tuple[int, float]:
        device = one[1]
        return (0 if merged else CLASS_ORDER.get(device.kind, 2)), -device.speed_bytes_s if speeds_known else 0.0

    found: dict[DeviceKey, int] = {}
    number, first = -1, (-1, 0.0)
    for node, device in sorted(devices, key=rank):
        kind, speed = rank((node, device))
        if kind != first[0] or -speed < SAME_SPEED * -first[1]:
            number, first = number + 1, (kind, speed)
        found[node.id, device.id] = number
    return found


def speed_of(device: DeviceView, *, known: bool) -> float:
    """Bytes a second."""
    return device.speed_bytes_s if known and device.speed_bytes_s > 0 else NOMINAL_BYTES_S.get(device.kind, 40e9)


def step_s(
    facts: ModelFacts,
    ranges: Sequence[tuple[OwnedDevice, range]],
    host: DeviceView | None,
    *,
    experts_on_host: int = 0,
    speeds_known: bool,
) -> float:
    """Seconds for one token: every layer is read once, from wherever it lies."""
    seconds, left = 0.0, set(range(len(facts.layer_weights_bytes)))
    host_bytes = 0
    for (_, device), layers in ranges:
        left.difference_update(layers)
        count = 0
        for layer in layers:
            used = facts.bytes_per_token(layer)
            if layer < experts_on_host and facts.layer_expert_bytes and facts.expert_count:
                experts = facts.layer_expert_bytes[layer] * facts.expert_used_count // facts.expert_count
                host_bytes, used = host_bytes + experts, used - experts
            count += used
        seconds += count / speed_of(device, known=speeds_known)
    host_bytes += sum(facts.bytes_per_token(layer) for layer in left)
    host_speed = speed_of(host, known=speeds_known) if host is not None else NOMINAL_BYTES_S[DeviceKind.CPU]
    return seconds + host_bytes / host_speed


def expected_s(step: float, devices: Sequence[OwnedDevice], decoding: Mapping[DeviceKey, float]) -> float:
    """The step, shared with the replicas that decode on the busiest device of the set."""
    busiest = max((decoding.get((node.id, device.id), 0.0) for node, device in devices), default=0.0)
    return step * (1 + busiest)
