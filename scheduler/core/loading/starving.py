"""A load that has waited too long for busy replicas: the one that costs least takes nothing new, ends, and goes."""

from scheduler.core.books.books import Books
from scheduler.core.books.load_jobs import LoadJob
from scheduler.core.planning.candidates import Refusal, Verdict
from scheduler.core.room.evictable import pool_bytes, spare_replicas
from scheduler.core.room.keep_cost import loss_of_replica
from scheduler.core.sizes.eviction import PoolKey
from scheduler.core.stopping.stopping import order_stop


def drain_cheapest(books: Books, job: LoadJob, refusal: Refusal, now_s: float) -> None:
    """Order one replica to drain, if none does so already; never one that is pinned, or that must be kept."""
    if any(stop.reason == "starved" for stop in books.stops.values()):
        return
    short = _short_pools(books, refusal)
    priced: list[tuple[float, str]] = []
    for node_id, runner, _ in spare_replicas(books, job, now_s):
        useful = sum(count for pool, count in pool_bytes(books, node_id, runner).items() if pool in short)
        if useful > 0:
            priced.append((loss_of_replica(books, runner, now_s) / useful, runner.placement_id))
    if priced:
        order_stop(books, min(priced)[1], reason="starved", now_s=now_s)


def _short_pools(books: Books, refusal: Refusal) -> frozenset[PoolKey]:
    """Where room is needed: what the candidates lack."""
    pools: set[PoolKey] = set()
    for candidate in refusal.candidates:
        if candidate.verdict is not Verdict.SHORT_BYTES:
            continue
        for need, have in zip(candidate.needs, candidate.available, strict=False):
            node = books.node(need.node_id or candidate.node_id)
            device = node.device(need.device_id) if node is not None else None
            if node is not None and device is not None and need.total_bytes > have.available_bytes:
                pools.add((node.id, device.pool_id))
    return frozenset(pools)
