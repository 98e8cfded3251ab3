"""Time per token on devices, and groups of equally fast ones. Pure.

A device is ranked by what decode steps of replicas read there. Until some are known, like devices stand for it: a card
is as fast as others of its product, any device reaches as much of its copy as others of its kind. Without that, a
device would look faster than its equals for as long as it is unused. Last comes the copy itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low

from scheduler.core.sizes.splitting import DeviceKey
from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.view import DeviceKind, DeviceView, NodeView, SpeedSource

SAME_SPEED = 0.8  # within 20 % of the fastest of a class
SAME_TIME = 1.1  # within 10 %
# Where speeds are not known all devices of a kind count as equal, and a GPU as faster than what computes in RAM.
NOMINAL_BYTES_S = {DeviceKind.GPU: 400e9, DeviceKind.INTEGRATED: 80e9, DeviceKind.CPU: 40e9}
CLASS_ORDER = {DeviceKind.GPU: 0, DeviceKind.INTEGRATED: 1, DeviceKind.CPU: 2}

OwnedDevice = tuple[NodeView, DeviceView]
_BEHIND_A_NETWORK = "RPC"  # as fast as the way there


@dataclass(frozen=True, slots=True)
class LikeSpeeds:
    """Speeds shown by replicas: per product; per kind and backend, the share of its copy speed."""

    products: Mapping[tuple[str, str], float] = field(default_factory=dict)
    shares: Mapping[tuple[DeviceKind, str], float] = field(default_factory=dict)


def like_speeds(nodes: Iterable[NodeView]) -> LikeSpeeds:
    """Return the speeds shown by replicas; the median of like devices."""
    products: dict[tuple[str, str], list[float]] = {}
    shares: dict[tuple[DeviceKind, str], list[float]] = {}
    for node in nodes:
        for device in node.devices:
            if device.speed_source is SpeedSource.REPLICAS and device.backend != _BEHIND_A_NETWORK:
                if _is_of_product(device):
                    products.setdefault((device.backend, device.description), []).append(device.speed_bytes_s)
                if device.copy_bytes_s > 0:
                    share = min(1.0, device.speed_bytes_s / device.copy_bytes_s)  # a busy machine copies slowly
                    shares.setdefault((device.kind, device.backend), []).append(share)
    return LikeSpeeds(
        {product: median_low(speeds) for product, speeds in products.items()},
        {kind: median_low(found) for kind, found in shares.items()},
    )


def likened(node: NodeView, known: LikeSpeeds) -> NodeView:
    """Return the node with the speeds of like devices where no replica showed one; the same node if there are none."""
    devices = tuple(_likened(device, known) for device in node.devices)
    same = all(after is before for after, before in zip(devices, node.devices, strict=True))
    return node if same else replace(node, devices=devices)


def _likened(device: DeviceView, known: LikeSpeeds) -> DeviceView:
    if device.speed_source is SpeedSource.REPLICAS:
        return device
    speed = known.products.get((device.backend, device.description), 0.0) if _is_of_product(device) else 0.0
    speed = speed or device.copy_bytes_s * known.shares.get((device.kind, device.backend), 0.0)
    return replace(device, speed_bytes_s=speed, speed_source=SpeedSource.LIKE_DEVICES) if speed else device


def _is_of_product(device: DeviceView) -> bool:
    """Return True if its description implies its speed: a card has memory of its own, a CPU has the machine's."""
    return device.kind is DeviceKind.GPU and bool(device.description) and device.backend != _BEHIND_A_NETWORK


def speed_classes(devices: Sequence[OwnedDevice], *, merged: bool = False) -> dict[DeviceKey, int]:
    """Return the class of each device, 0 first: discrete before integrated, then by speed.

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
    """Return bytes a second."""
    return device.speed_bytes_s if known and device.speed_bytes_s > 0 else NOMINAL_BYTES_S.get(device.kind, 40e9)


def step_s(
    facts: ModelFacts,
    ranges: Sequence[tuple[OwnedDevice, range]],
    host: DeviceView | None,
    *,
    experts_on_host: int = 0,
    speeds_known: bool,
) -> float:
    """Return the seconds for one token: every layer is read once, from its own memory."""
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


def expected_s(step: float, devices: Iterable[DeviceKey], decoding: Mapping[DeviceKey, float]) -> float:
    """Return the step's seconds, shared with the replicas that decode on the busiest device of the set."""
    return step * (1 + max([decoding.get(key, 0.0) for key in devices], default=0.0))
