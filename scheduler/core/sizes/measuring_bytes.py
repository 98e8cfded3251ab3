"""Memory that a measurement holds while it runs. Pure: a layout in, bytes by device out.

It allocates no weights and no cache, but it is a process: a context on every device, and in RAM what a reader of the
model needs. Measured with the engine on a CPU (RssAnon; libraries and the file are page cache):

    44 MiB       interpreter, libraries and a model of 1,024 tokens: the reserve of any process covers it
    + 319 B      for each token of the vocabulary: 52 MiB at 32k, 88 MiB at 152k, 123 MiB at 262k
    + 52.2 B     for each cell of the cache: 104 MiB at 1M cells, 469 MiB at 8M; more are extrapolated, not counted
    + its state  for each slot of a recurrent layer, which is allocated even so: 346 MiB at 256 slots of 1.2 MiB
"""

from collections.abc import Iterable, Mapping

from common.spec.layout import Layout
from scheduler.core.sizes.estimate import layer_ranges
from scheduler.core.sizes.ledger import reserve_bytes
from scheduler.core.sizes.splitting import DeviceKey
from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import NodeView

TOKEN_BYTES = 320
CELL_BYTES = 53
CELLS_COUNTED_MAX = 8 * 1024 * 1024  # as `runner.measure` counts at most
VOCABULARY_UNKNOWN = 262_144  # the largest that is usual


def measuring_bytes(
    head: NodeView, layout: Layout, facts: ModelFacts, nodes: Mapping[str, NodeView], policy: Policy
) -> dict[DeviceKey, int]:
    """Return the bytes of a measurement of the layout on `head` and on its lenders, by node and device."""
    held: dict[DeviceKey, int] = {}
    on_devices: set[int] = set()
    ranges = layer_ranges(layout, max(0, len(facts.layer_weights_bytes) - 1))
    for part, (start, stop) in zip(layout.devices, ranges, strict=True):
        owner = nodes.get(part.node_id or head.id)
        device = owner.device(part.device_id) if owner is not None else None
        on_devices.update(range(start, stop))
        if owner is not None and device is not None:
            key = owner.id, device.id
            states = _state_bytes(facts, range(start, stop), layout)
            held[key] = held.get(key, reserve_bytes(device, policy)) + states
            if owner.id != head.id and (lending := owner.host_device) is not None:
                held.setdefault((owner.id, lending.id), reserve_bytes(lending, policy))
    if (host := head.host_device) is not None:
        left = (layer for layer in range(len(facts.layer_state_bytes)) if layer not in on_devices)
        held[head.id, host.id] = (
            held.get((head.id, host.id), 0)
            + reserve_bytes(host, policy)
            + TOKEN_BYTES * (facts.vocabulary_size or VOCABULARY_UNKNOWN)
            + CELL_BYTES * _cells(facts, layout)
            + _state_bytes(facts, left, layout)
        )
    return held


def _cells(facts: ModelFacts, layout: Layout) -> int:
    """Return the number of counted cells: a model without attention has one for each slot, which is negligible."""
    if facts.layer_state_bytes and not any(facts.layer_key_width) and any(facts.layer_state_bytes):
        return layout.slots
    return min(layout.context_tokens * layout.slots, CELLS_COUNTED_MAX)


def _state_bytes(facts: ModelFacts, layers: Iterable[int], layout: Layout) -> int:
    states = facts.layer_state_bytes
    return layout.state_copies * sum(states[layer] for layer in layers if layer < len(states))
