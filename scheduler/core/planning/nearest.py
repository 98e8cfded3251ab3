"""Nearest settings that would fit after a refusal: smaller context, fewer slots, smaller cache, one more device.

Worked out by the planner itself, on the largest nodes. What was measured for the refusal bounds what less would take;
where nothing was, formulas are on the safe side. What is named here fits by them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from scheduler.core.planning.candidates import ClusterView, PlacementRequest
from scheduler.core.planning.steps import CACHE_TYPE_SMALL, CONTEXT_STEPS
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import DeviceKind, DeviceView, NodeView

NODES_LOOKED_AT = 8
# Below what is ever chosen by itself; shorter ones are of no use.
SMALL_CONTEXTS = (2048, 1024, 512, 256)

Fits = Callable[[PlacementRequest, ClusterView, Policy], bool]


def nearest(request: PlacementRequest, view: ClusterView, policy: Policy, fits: Fits) -> tuple[str, ...]:
    """Return configurations that would fit, each with one change. Empty: none is near, or it is unknown."""
    having = [node for node in view.nodes if (file := node.model(request.model_digest)) is not None and file.facts]
    largest = sorted(having, key=lambda node: (-_total_bytes(node), node.id))[:NODES_LOOKED_AT]
    if not largest:
        return ()
    smaller = replace(view, nodes=tuple(largest))
    by_estimate = replace(policy, measure=False)
    found: dict[str, str] = {}
    for kind, text, other, nodes in _changes(request, largest):
        if kind not in found and fits(other, replace(smaller, nodes=nodes), by_estimate):
            found[kind] = text
    return tuple(found.values())


def would_fit_text(configurations: tuple[str, ...]) -> str:
    """Return the configurations that would fit as text for a refusal."""
    return f"by estimate it would fit with {' or with '.join(configurations)}"


def _changes(
    request: PlacementRequest, nodes: list[NodeView]
) -> Iterator[tuple[str, str, PlacementRequest, tuple[NodeView, ...]]]:
    """Yield kinds of change, their words and the changed request; of each kind the smallest change first."""
    same = tuple(nodes)
    layout = request.layout
    for tokens in (*CONTEXT_STEPS, *SMALL_CONTEXTS):
        if tokens < layout.context_tokens:
            changed = replace(request, layout=replace(layout, context_tokens=tokens), automatic_context=False)
            yield "context", f"num_ctx {tokens}", changed, same
    slots = min(request.slot_steps)
    while slots > 1:
        slots //= 2
        yield "slots", f"{slots} slots" if slots > 1 else "1 slot", replace(request, slot_steps=(slots,)), same
    if not any(layout.cache_types):
        small = layout.with_cache_types(CACHE_TYPE_SMALL, CACHE_TYPE_SMALL)
        yield "cache", f"cache type {CACHE_TYPE_SMALL}", replace(request, layout=small), same
    for number, node in enumerate(nodes):
        device = _largest(node)
        if device is not None:
            more = replace(device, id=f"{device.id}+1", pool_id=f"{device.pool_id}+1", free_bytes=device.total_bytes)
            grown = replace(node, devices=(*node.devices, more))
            text = f"one more device like {device.name} on {node.id}"
            yield "device", text, request, (*nodes[:number], grown, *nodes[number + 1 :])


def _largest(node: NodeView) -> DeviceView | None:
    usable = [device for device in node.devices if device.kind is DeviceKind.GPU and device.usable]
    return max(usable, key=lambda device: (device.total_bytes, device.id), default=None)


def _total_bytes(node: NodeView) -> int:
    return sum(device.total_bytes for device in node.devices)
