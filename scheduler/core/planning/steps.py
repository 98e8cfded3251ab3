"""In which order shapes, eviction and automatic values are tried, as one list of steps.

`evict_for_speed`: one device and one node are tried without, then with idle victims, and only then a slower shape, each
first without, then with victims. Else nothing is evicted while any shape fits. The values that a request leaves open
step down; explicit ones never change.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from common.spec.layout import Layout
from scheduler.core.planning.candidates import PlacementRequest
from scheduler.core.values.asked import CONTEXT_TOKENS_AUTO
from scheduler.core.values.constraints import Constraints, Shape
from scheduler.core.values.memory import GIB
from scheduler.core.values.view import DeviceKind, NodeView, cached_per_view

GROUPS: tuple[tuple[DeviceKind, tuple[Shape, ...]], ...] = (
    (DeviceKind.GPU, (Shape.ONE_DEVICE, Shape.ONE_NODE)),
    (DeviceKind.INTEGRATED, (Shape.ONE_DEVICE, Shape.ONE_NODE)),  # the last choice of those that hold everything
    (DeviceKind.GPU, (Shape.NODES,)),
    (DeviceKind.GPU, (Shape.EXPERTS_ON_HOST,)),
    (DeviceKind.GPU, (Shape.PARTIAL,)),
    (DeviceKind.INTEGRATED, (Shape.EXPERTS_ON_HOST,)),
    (DeviceKind.INTEGRATED, (Shape.PARTIAL,)),
    (DeviceKind.CPU, (Shape.CPU,)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to try everywhere: a shape on devices of a kind, with these automatic values."""

    shape: Shape
    kind: DeviceKind
    evicts: bool  # bytes of idle replicas count as free
    context_step: int  # how far the automatic context has stepped down
    cache_step: int  # how far the automatic cache type has
    slots: int


def steps(
    constraints: Constraints,
    *,
    slot_steps: tuple[int, ...],
    context_steps: int,
    cache_steps: int,
    may_evict: bool,
    evict_for_speed: bool,
) -> Iterator[Step]:
    """Yield all steps, best first. Slots step down first, the context only after eviction did not help."""
    groups = [(kind, tuple(shape for shape in shapes if _allowed(constraints, shape))) for kind, shapes in GROUPS]
    evictions = (False, True) if may_evict else (False,)
    sizes = [(context, cache) for cache in range(cache_steps) for context in range(context_steps)]
    if evict_for_speed:
        order = [(group, evicts, size) for group in groups for size in sizes for evicts in evictions]
    else:
        order = [(group, evicts, size) for size in sizes for evicts in evictions for group in groups]
    for (kind, shapes), evicts, (context, cache) in order:
        for shape in shapes:
            for slots in slot_steps:
                yield Step(shape=shape, kind=kind, evicts=evicts, context_step=context, cache_step=cache, slots=slots)


def _allowed(constraints: Constraints, shape: Shape) -> bool:
    """Return True if the model may have this layout. A user's count of layers is kept, not replaced by none."""
    if constraints.num_gpu and shape in (Shape.EXPERTS_ON_HOST, Shape.CPU):
        return False
    return constraints.allows_shape(shape)


# Context of an automatic replica by what the devices of its node have in total.
TIERS = ((47 * GIB, 262144), (23 * GIB, 32768), (0, CONTEXT_TOKENS_AUTO))
CONTEXT_STEPS = (131072, 65536, 32768, 16384, 8192, CONTEXT_TOKENS_AUTO)
CACHE_TYPE_SMALL = "q8_0"


def context_steps(request: PlacementRequest, trained_tokens: int, total_bytes: int) -> tuple[int, ...]:
    """Return the contexts to try on a node with so much device memory, largest first. 0 `trained_tokens`: not given."""
    least = request.layout.context_tokens  # what is wanted at least
    if not request.automatic_context:
        return (least,)
    first = max(least, tier_tokens(total_bytes))
    steps = [first, *(step for step in CONTEXT_STEPS if least <= step < first)]
    if trained_tokens:
        steps = [min(step, trained_tokens) for step in steps]
    return tuple(dict.fromkeys(steps))


def cache_types(request: PlacementRequest) -> tuple[Layout, ...]:
    """Return the layout as it is, then with the smaller cache if that may be chosen."""
    layout = request.layout
    if not request.automatic_cache_type or any(layout.cache_types):
        return (layout,)
    return (layout, layout.with_cache_types(CACHE_TYPE_SMALL, CACHE_TYPE_SMALL))


def tier_tokens(total_bytes: int) -> int:
    """Return the initial context of a machine with so much device memory."""
    return next(tokens for least, tokens in TIERS if total_bytes >= least)


@cached_per_view
def tier_bytes(node: NodeView) -> int:
    """Return the bytes that count for the tier: memory of devices, not the machine's RAM."""
    return sum(device.total_bytes for device in node.devices if device.kind is DeviceKind.GPU and device.usable)
