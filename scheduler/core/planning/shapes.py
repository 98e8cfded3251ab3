"""In which order shapes, eviction and automatic values are tried, as one list of steps.

`evict_for_speed`: one device and one node are tried without, then with idle victims, and only then a slower shape, each
first without, then with victims. Else nothing is evicted while any shape fits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from scheduler.core.values.constraints import Constraints, Shape
from scheduler.core.values.view import DeviceKind

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


class Eviction(StrEnum):
    """Replicas whose bytes count as free."""

    NONE = "none"
    IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to try everywhere: a shape on devices of a kind, with these automatic values."""

    shape: Shape
    kind: DeviceKind
    eviction: Eviction
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
    evictions = (Eviction.NONE, Eviction.IDLE) if may_evict else (Eviction.NONE,)
    sizes = [(context, cache) for cache in range(cache_steps) for context in range(context_steps)]
    if evict_for_speed:
        order = [(group, eviction, size) for group in groups for size in sizes for eviction in evictions]
    else:
        order = [(group, eviction, size) for size in sizes for eviction in evictions for group in groups]
    for (kind, shapes), eviction, (context, cache) in order:
        for shape in shapes:
            for slots in slot_steps:
                yield Step(
                    shape=shape, kind=kind, eviction=eviction, context_step=context, cache_step=cache, slots=slots
                )


def _allowed(constraints: Constraints, shape: Shape) -> bool:
    """Return True if the model may have this layout. A user's count of layers is kept, not replaced by none."""
    if constraints.num_gpu and shape in (Shape.EXPERTS_ON_HOST, Shape.CPU):
        return False
    return constraints.allows_shape(shape)
