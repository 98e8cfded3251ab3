"""The values that a request leaves open, best first, and how they step down. Explicit ones never change."""

from dataclasses import dataclass, replace

from scheduler.core.values.layouts import CONTEXT_TOKENS_AUTO, Layout
from scheduler.core.values.memory import GIB
from scheduler.core.values.view import DeviceKind, NodeView

# Context of an automatic replica by what the devices of its node have in total.
TIERS = ((47 * GIB, 262144), (23 * GIB, 32768), (0, CONTEXT_TOKENS_AUTO))
CONTEXT_STEPS = (131072, 65536, 32768, 16384, 8192, CONTEXT_TOKENS_AUTO)
CACHE_TYPE_SMALL = "q8_0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Automatic:
    """What may be chosen. `slot_steps` has one number where the user gave one."""

    slot_steps: tuple[int, ...]
    context: bool = False  # the context comes from the tier
    cache_type: bool = False
    trained_tokens: int = 0  # 0: not given

    def context_steps(self, layout: Layout, total_bytes: int) -> tuple[int, ...]:
        """Contexts to try on a node with so much device memory, largest first."""
        if not self.context:
            return (layout.context_tokens,)
        least = layout.context_tokens  # what is wanted at least
        first = max(least, tier_tokens(total_bytes))
        steps = [first, *(step for step in CONTEXT_STEPS if least <= step < first)]
        if self.trained_tokens:
            steps = [min(step, self.trained_tokens) for step in steps]
        return tuple(dict.fromkeys(steps))

    def cache_types(self, layout: Layout) -> tuple[Layout, ...]:
        """The layout as it is, then with the smaller cache where that may be chosen."""
        if not self.cache_type or layout.cache_type_k or layout.cache_type_v:
            return (layout,)
        return (layout, replace(layout, cache_type_k=CACHE_TYPE_SMALL, cache_type_v=CACHE_TYPE_SMALL))


def tier_tokens(total_bytes: int) -> int:
    """The context that a machine with so much device memory starts with."""
    return next(tokens for least, tokens in TIERS if total_bytes >= least)


def tier_bytes(node: NodeView) -> int:
    """What counts for the tier: memory of devices, not the machine's RAM."""
    known: int | None = node.memo.get("tier_bytes")
    if known is None:
        usable = (device for device in node.devices if device.kind is DeviceKind.GPU and device.usable)
        known = node.memo["tier_bytes"] = sum(device.total_bytes for device in usable)
    return known
