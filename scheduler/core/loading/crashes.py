"""What crashes of loaded replicas teach the planner. Pure bookkeeping.

- Out of device memory while it ran: more margin for this model on such devices, never the same layout unchanged.
- Three crashes within a minute on a node: the placement is broken there; another node is tried, this one later again.
"""

from collections.abc import Iterator

from scheduler.core.books.books import Books
from scheduler.core.books.learning import keep
from scheduler.core.sizes.ledger import device_kind
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.faults import MEMORY_REASONS, Fault
from scheduler.core.values.memory import DeviceBytes

CRASHES_KEPT = 16


def see_crash(books: Books, record: DesiredPlacement, fault: Fault, now_s: float) -> None:
    """A replica that served is gone, and nobody had asked it to go."""
    key = (record.model_digest, record.node_id)
    books.crashes[key] = (*books.crashes.get(key, ()), now_s)[-CRASHES_KEPT:]
    if fault.reason in MEMORY_REASONS and record.planned is not None:
        named = {part.device_id for part in fault.attempted.devices} if fault.attempted is not None else set[str]()
        for part in record.planned.devices:
            if not named or part.device_id in named:
                _ask_for_more(books, record, part)


def _ask_for_more(books: Books, record: DesiredPlacement, part: DeviceBytes) -> None:
    node = books.node(part.node_id or record.node_id)
    device = node.device(part.device_id) if node is not None else None
    if device is not None:
        graph_and_cache = part.graph_bytes + part.cache_bytes
        keep(
            books,
            books.margins.with_exhausted(
                record.model_digest, device_kind(device), graph_and_cache_bytes=graph_and_cache
            ),
        )


def broken_nodes(books: Books, digest: str, now_s: float) -> dict[str, str]:
    """Nodes on which the model is not tried for now, with the reason."""
    return {
        node_id: f"the model crashed {books.policy.crashes_max} times within {last_s - first_s:.0f} s here"
        for node_id, first_s, last_s in _crash_loops(books, digest, now_s)
    }


def tried_again_at_s(books: Books, digest: str, now_s: float) -> float | None:
    """When the first of these nodes is tried again; None: there is none."""
    ends_s: dict[str, float] = {}
    for node_id, first_s, _ in _crash_loops(books, digest, now_s):
        ends_s[node_id] = first_s + books.policy.broken_s  # of its last loop: they are in order
    return min(ends_s.values(), default=None)


def _crash_loops(books: Books, digest: str, now_s: float) -> Iterator[tuple[str, float, float]]:
    """Every loop that is not forgotten yet: the node, and the first and the last of its crashes."""
    policy = books.policy
    for (model_digest, node_id), moments in books.crashes.items():
        if model_digest != digest:
            continue
        recent = [moment for moment in moments if now_s < moment + policy.broken_s]
        for first_s, last_s in zip(recent, recent[policy.crashes_max - 1 :], strict=False):
            if last_s - first_s <= policy.crash_loop_s:
                yield node_id, first_s, last_s
