"""Who is in the way of a load where bytes are short: what explanations say beside the numbers."""

from collections.abc import Iterable
from dataclasses import replace

from scheduler.core.books.books import Books
from scheduler.core.books.load_jobs import LoadJob
from scheduler.core.books.shared_files import keeping_of
from scheduler.core.planning.candidates import Candidate, MeasureFirst, Placement, Refusal, Verdict
from scheduler.core.room.evictable import is_used, pool_bytes, spare_replicas
from scheduler.core.sizes.eviction import PoolKey
from scheduler.core.values.memory import bytes_text
from scheduler.core.values.view import SERVING_STATES, RunnerView

CANDIDATES_MAX = 32  # that are told of; nobody reads more
NAMES_MAX = 8

Outcome = Placement | MeasureFirst | Refusal
_KINDS = ("busy", "just loaded", "pinned", "kept", "going")


def with_names(books: Books, job: LoadJob, outcome: Outcome, now_s: float) -> Outcome:
    """The same decision; what is short says who lies there, and why that does not help."""
    if isinstance(outcome, MeasureFirst):
        return outcome
    told = 0
    candidates: list[Candidate] = []
    for candidate in outcome.candidates:
        text = ""
        if candidate.verdict is Verdict.SHORT_BYTES and candidate.needs and told < CANDIDATES_MAX:
            told += 1
            text = _text(books, job, candidate, now_s)
        reason = "; ".join(part for part in (candidate.reason, text) if part)
        candidates.append(replace(candidate, reason=reason) if text else candidate)
    return replace(outcome, candidates=tuple(candidates)) if told else outcome


def holders(books: Books, refusal: Refusal) -> list[str]:
    """The models whose replicas lie where bytes are short."""
    candidates = refusal.candidates[:CANDIDATES_MAX]
    short = {pool for one in candidates if one.verdict is Verdict.SHORT_BYTES for pool in _short_pools(books, one)}
    return [
        runner.model_name
        for node_id, runner in books.observed.replicas()
        if any(count and pool in short for pool, count in pool_bytes(books, node_id, runner).items())
    ]


def _text(books: Books, job: LoadJob, candidate: Candidate, now_s: float) -> str:
    short = _short_pools(books, candidate)
    spare = {runner.placement_id for _, runner, _ in spare_replicas(books, job, now_s)}
    idle: list[str] = []
    others: dict[str, list[str]] = {}
    for node_id, runner in books.observed.replicas():
        held = sum(count for pool, count in pool_bytes(books, node_id, runner).items() if pool in short)
        if not held or runner.state not in SERVING_STATES:
            continue
        kind = _kind(books, runner, now_s, is_spare=runner.placement_id in spare)
        if kind:
            others.setdefault(kind, []).append(runner.model_name)
        else:
            idle.append(f"{runner.model_name} ({bytes_text(held)})")
    told = [(kind, others[kind]) for kind in _KINDS if kind in others]
    return "; ".join(
        [
            *([f"evicting {_list(idle)} is not enough"] if idle else []),
            *(f"{_list(names)} {'is' if len(names) == 1 else 'are'} {kind}" for kind, names in told),
        ]
    )


def _kind(books: Books, runner: RunnerView, now_s: float, *, is_spare: bool) -> str:
    """Why a replica does not go for a load; empty: it would."""
    if runner.placement_id in books.stops:
        return "going"
    if keeping_of(books, runner).pinned:
        return "pinned"
    if runner.placement_id not in books.memos or is_used(books, runner, now_s):
        return "busy"
    if not is_spare:
        return "kept"
    is_young = now_s < books.memos[runner.placement_id].ready_since_s + books.policy.dwell_s_min
    return "just loaded" if is_young else ""


def _short_pools(books: Books, candidate: Candidate) -> set[PoolKey]:
    pools: set[PoolKey] = set()
    for need, have in zip(candidate.needs, candidate.available, strict=False):
        node = books.node(need.node_id or candidate.node_id)
        device = node.device(need.device_id) if node is not None else None
        if node is not None and device is not None and need.total_bytes > have.available_bytes:
            pools.add((node.id, device.pool_id))
    return pools


def names_text(names: Iterable[str]) -> str:
    """Each name once."""
    return _list(list(set(names)))


def _list(names: list[str]) -> str:
    shown = sorted(names)[:NAMES_MAX]
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(shown) + more
