"""What crashes of loaded replicas teach the planner. Pure bookkeeping.

- Out of device memory while it ran: more margin for this model on such devices, never the same layout unchanged.
- The model is loaded again after a pause: half a second, twice as long after every further crash, half a minute at
  most. A replica that served for a minute ends the row.
- Three crashes within a minute on a node: the placement is broken there; another node is tried, this one later again.
- What a request did that gateways now refuse is not the model's fault: such crashes count for neither, from the moment
  at which that is known, before the crash is seen or after. Only three such requests within a minute do: by then it is
  the placement that is broken, and not the requests.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf

from scheduler.core.books.books import FORGOTTEN_MAX, Books, Crash
from scheduler.core.books.events import CrashesBlamed
from scheduler.core.books.learning import keep
from scheduler.core.books.load_jobs import Pause
from scheduler.core.sizes.ledger import device_kind
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.faults import MEMORY_REASONS, Fault
from scheduler.core.values.memory import DeviceBytes

CRASHES_KEPT = 16


def see_crash(books: Books, record: DesiredPlacement, fault: Fault, now_s: float) -> None:
    """A replica that served is gone, and nobody had asked it to go."""
    key = (record.model_digest, record.node_id)
    memo = books.memos.get(record.placement_id)
    is_known = memo is not None and memo.generation == record.generation
    crash = Crash(
        at_s=now_s,
        life=(record.placement_id, record.generation),
        served_s=now_s - memo.ready_since_s if memo is not None and is_known else inf,
    )
    books.crashes[key] = (*books.crashes.get(key, ()), crash)[-CRASHES_KEPT:]
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


def blame_request(books: Books, event: CrashesBlamed) -> None:
    """These replicas were ended by a request, as a gateway says: more than once, for those who did not hear."""
    for placement_id, generation in event.lives:
        if (placement_id, generation) not in books.poisoned:
            books.poisoned[placement_id, generation] = event.request
            books.note(
                "crash.not_counted", placement=placement_id, generation=generation, why="a request that is refused now"
            )
    while len(books.poisoned) > FORGOTTEN_MAX:
        del books.poisoned[next(iter(books.poisoned))]


def pause_after_crash(books: Books, digest: str, now_s: float) -> Pause | None:
    """What a load of the model waits for now; None: nothing. Nodes where it is broken are not waited for."""
    broken = broken_nodes(books, digest, now_s)
    own = ((node_id, _own(books, crashes)) for node_id, crashes in _crashes(books, digest) if node_id not in broken)
    pauses = (_pause(books, crashes) for _, crashes in own if crashes)
    return max((one for one in pauses if now_s < one.until_s), key=lambda one: one.until_s, default=None)


def _pause(books: Books, crashes: Sequence[Crash]) -> Pause:
    """After the last of these."""
    policy, row = books.policy, 1
    for earlier, later in pairwise(crashes):
        ends = later.served_s >= policy.restart_reset_s or later.at_s >= earlier.at_s + policy.broken_s
        row = 1 if ends else row + 1
    length_s = min(policy.restart_backoff_s * 2 ** (row - 1), policy.restart_backoff_s_max)
    return Pause(until_s=crashes[-1].at_s + length_s, length_s=length_s, crashes=row)


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
        ends_s[node_id] = max(ends_s.get(node_id, 0.0), first_s + books.policy.broken_s)
    return min(ends_s.values(), default=None)


def _crash_loops(books: Books, digest: str, now_s: float) -> Iterator[tuple[str, float, float]]:
    """Every loop that is not forgotten yet: the node, and the first and the last of its crashes."""
    policy = books.policy
    for node_id, crashes in _crashes(books, digest):
        recent = [crash for crash in crashes if now_s < crash.at_s + policy.broken_s]
        for moments in ([crash.at_s for crash in _own(books, recent)], _requests(books, recent)):
            for first_s, last_s in zip(moments, moments[policy.crashes_max - 1 :], strict=False):
                if last_s - first_s <= policy.crash_loop_s:
                    yield node_id, first_s, last_s


def _crashes(books: Books, digest: str) -> Iterator[tuple[str, Sequence[Crash]]]:
    """By node, oldest first."""
    for (model_digest, node_id), crashes in books.crashes.items():
        if model_digest == digest:
            yield node_id, crashes


def _own(books: Books, crashes: Sequence[Crash]) -> list[Crash]:
    """Those that no request is to blame for."""
    return [crash for crash in crashes if crash.life not in books.poisoned]


def _requests(books: Books, crashes: Sequence[Crash]) -> list[float]:
    """When each of the requests that are to blame ended its first replica."""
    moments: dict[str, float] = {}
    for crash in crashes:
        if crash.life in books.poisoned:
            moments.setdefault(books.poisoned[crash.life], crash.at_s)
    return list(moments.values())
