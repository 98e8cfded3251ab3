"""Nodes that operators take out of use: written down before it counts, kept by every leader until it is undone.

Nothing new is placed there, or lent from there. What runs there goes: first a replica elsewhere takes its place, if
there is room for one without eviction; then it takes nothing new, and ends when its sequences have, or when the
drain's budget is over.
"""

from collections.abc import Mapping

from scheduler.core.books.books import Books, Drain
from scheduler.core.books.effects import AnswerDrain, AnswerFailed, CheckLeadership, SaveDrain
from scheduler.core.books.events import DrainAsked, DrainSaved, DrainSaveFailed
from scheduler.core.books.load_jobs import LoadState
from scheduler.core.books.replicas import serving_replicas
from scheduler.core.books.shared_files import keeping_of
from scheduler.core.loading.requests import begin_load
from scheduler.core.stopping.stopping import order_stop
from scheduler.core.values.faults import STALE_FENCE, node_not_found, unavailable
from scheduler.core.values.layouts import Layout
from scheduler.core.values.routing_table import find_model
from scheduler.core.values.view import SERVING_STATES, RunnerView

REASON = "drain"


def take_in(books: Books, event: DrainAsked | DrainSaved | DrainSaveFailed, now_s: float) -> None:
    """What operators want, and what became of it."""
    match event:
        case DrainAsked():
            ask(books, event)
        case DrainSaved():
            on_saved(books, event, now_s)
        case DrainSaveFailed():
            on_save_failed(books, event)


def take_over(books: Books, stored: Mapping[str, float], fence: int, now_s: float) -> None:
    """Lead from here on, with what the store knows; what this leader had written and the store forgot is written."""
    own = books.drains if books.leadership is not None else {}
    books.drains = {
        node_id: own.get(node_id) or Drain(since_s=now_s, budget_s=budget_s) for node_id, budget_s in stored.items()
    }
    for node_id in own.keys() - stored.keys():
        books.drains[node_id] = own[node_id]
        books.emit(SaveDrain(fence=fence, caller_id="", node_id=node_id, budget_s=own[node_id].budget_s))


def ask(books: Books, event: DrainAsked) -> None:
    """Have it written down. Whoever is gone can still be undrained."""
    if books.leadership is None:
        _refuse(books, event.caller_id, books.no_leader_why)
    elif books.node(event.node_id) is None and event.node_id not in books.drains:
        books.emit(AnswerFailed(callers=(event.caller_id,), fault=node_not_found(event.node_id)))
    else:
        budget_s = books.policy.node_drain_s if event.budget_s is None else event.budget_s
        books.emit(
            SaveDrain(
                fence=books.leadership.fence,
                caller_id=event.caller_id,
                node_id=event.node_id,
                budget_s=budget_s if event.drain else None,
            )
        )


def on_saved(books: Books, event: DrainSaved, now_s: float) -> None:
    """The store has it: from here on it counts."""
    was_drained = event.node_id in books.drains
    if event.budget_s is None:
        books.drains.pop(event.node_id, None)
    else:
        since_s = books.drains[event.node_id].since_s if was_drained else now_s
        books.drains[event.node_id] = Drain(since_s=since_s, budget_s=event.budget_s)
        _plan_elsewhere(books, event.node_id, now_s)
    if was_drained != (event.budget_s is not None):
        books.note("node.drained" if event.budget_s is not None else "node.undrained", node=event.node_id)
    books.emit(
        AnswerDrain(
            caller_id=event.caller_id,
            node_id=event.node_id,
            drains=event.budget_s is not None,
            replicas=replicas_left(books, event.node_id),
        )
    )


def on_save_failed(books: Books, event: DrainSaveFailed) -> None:
    """Nothing has changed."""
    if event.fault.reason == STALE_FENCE:
        books.emit(CheckLeadership())
    books.emit(AnswerFailed(callers=(event.caller_id,), fault=event.fault))


def replicas_left(books: Books, node_id: str) -> int:
    """Replicas that run on a node, or on what it lends."""
    return sum(1 for owner, runner in books.observed.replicas() if node_id in nodes_of(owner, runner.layout))


def replicas_on_drained(books: Books) -> dict[str, int]:
    """How many are left, by node."""
    return {node_id: replicas_left(books, node_id) for node_id in books.drains}


def nodes_of(owner: str, layout: Layout) -> set[str]:
    """Every node that a placement takes part of."""
    return {owner, *(part.node_id for part in layout.devices if part.node_id)}


def advance_drains(books: Books, now_s: float) -> None:
    """Take every drain as far as it comes now."""
    if not books.drains or books.leadership is None:
        return
    loading = {job.record.placement_id for job in books.jobs.values() if job.record is not None}
    for owner, runner in list(books.observed.replicas()):
        drains = [(one, books.drains[one]) for one in nodes_of(owner, runner.layout) if one in books.drains]
        is_served = runner.state in SERVING_STATES and runner.placement_id in books.memos
        if not drains or not is_served or runner.placement_id in loading:
            continue
        is_over = any(now_s >= drain.over_s for _, drain in drains)
        if runner.placement_id in books.stops:
            if is_over:
                order_stop(books, runner.placement_id, reason=REASON, now_s=now_s, forced=True)
        elif is_over or all(_has_gone_elsewhere(books, drain, runner, now_s) for _, drain in drains):
            order_stop(books, runner.placement_id, reason=REASON, now_s=now_s, forced=is_over)


def _has_gone_elsewhere(books: Books, drain: Drain, runner: RunnerView, now_s: float) -> bool:
    """Whether nothing is to be waited for: as many serve elsewhere as should, or there is no room for them."""
    digest = runner.model_digest
    elsewhere = sum(
        1 for owner, one in serving_replicas(books, digest) if not nodes_of(owner, one.layout) & books.drains.keys()
    )
    if elsewhere >= max(1, keeping_of(books, runner).replicas_min):
        return True
    if any(job.model_digest == digest for job in books.jobs.values()):
        return False
    model = find_model(tuple(books.observed.nodes.values()), runner.model_name)
    if digest in drain.tried or model is None or model.error:
        return True
    drain.tried.add(digest)
    begin_load(books, model, now_s=now_s, is_extra=True, may_evict=False, reason=REASON)
    return False


def _plan_elsewhere(books: Books, node_id: str, now_s: float) -> None:
    """What is being written down has not begun."""
    for job in books.jobs_by_age():
        record = job.record
        if job.state is LoadState.PLANNED and record and node_id in nodes_of(record.node_id, record.layout):
            job.plan_again(now_s, pause_s=0.0)


def _refuse(books: Books, caller_id: str, why: str) -> None:
    books.emit(AnswerFailed(callers=(caller_id,), fault=unavailable(why)))
