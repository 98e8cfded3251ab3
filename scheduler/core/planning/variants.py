"""The values that a request leaves open, best first, and how they step down. Explicit ones never change."""

from dataclasses import dataclass

from common.spec.layout import Layout
from scheduler.core.values.layouts import CONTEXT_TOKENS_AUTO
from scheduler.core.values.memory import GIB
from scheduler.core.values.view import DeviceKind, NodeView, cached_per_view

# Context of an automatic replica by what the devices of its node have in total.
TIERS = ((47 * GIB, 262144), (23 * GIB, 32768), (0, CONTEXT_TOKENS_AUTO))
CONTEXT_STEPS = (131072, 65536, 32768, 16384, 8192, CONTEXT_TOKENS_AUTO)
CACHE_TYPE_SMALL = "q8_0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Automatic:
    """Values that the planner may choose. `slot_steps` has one number where the user gave one."""

    slot_steps: tuple[int, ...]
    context: bool = False  # the context comes from the tier
    cache_type: bool = False
    trained_tokens: int = 0  # 0: not given

    def context_steps(self, layout: Layout, total_bytes: int) -> tuple[int, ...]:
        """Return the contexts to try on a node with so much device memory, largest first."""
        if not self.context:
            return (layout.context_tokens,)
        least = layout.context_tokens  # what is wanted at least
        first = max(least, tier_tokens(total_bytes))
        steps = [first, *(step for step in CONTEXT_STEPS if least <= step < first)]
        if self.trained_tokens:
            steps = [min(step, self.trained_tokens) for step in steps]
        return tuple(dict.fromkeys(steps))

    def cache_types(self, layout: Layout) -> tuple[Layout, ...]:
        """Return the layout as it is, then with the smaller cache if that may be chosen."""
        if not self.cache_type or any(layout.cache_types):
            return (layout,)
        return (layout, layout.with_cache_types(CACHE_TYPE_SMALL, CACHE_TYPE_SMALL))


def tier_tokens(total_bytes: int) -> int:
    """Return the initial context of a machine with so much device memory."""
    return next(tokens for least, tokens in TIERS if total_bytes >= least)


@cached_per_view
def tier_bytes(node: NodeView) -> int:
    """Return the bytes that count for the tier: memory of devices, not the machine's RAM."""
    return sum(device.total_bytes for device in node.devices if device.kind is DeviceKind.GPU and device.usable)
