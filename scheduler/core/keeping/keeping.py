"""How many replicas of each model there should be, and the loads and stops that follow.

- `replicas_min` are kept: what is missing is loaded again, wherever there is room.
- `preload` is loaded once, as soon as a node has the file.
- Requests that wait too long for a slot bring one replica more, up to `replicas_max`, if there is room without
  eviction. Such a one goes again by its own keep_alive.
Nobody waits for these loads: one that fails is tried again after the model's pause.
"""

from collections.abc import Mapping

from scheduler.core.books.books import Books
from scheduler.core.books.model_constraints import constraints_of, wished_models
from scheduler.core.books.replicas import serving_replicas
from scheduler.core.loading.requests import begin_load
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.routing_table import find_model
from scheduler.core.values.view import ModelFile

# After so long without news of a gateway, what it told is not believed any more.
QUEUE_FORGOTTEN_S = 5.0
# How long a scale-up that found no room is not tried again.
SCALE_PAUSE_S = 15.0


def keep_replicas(books: Books, now_s: float) -> None:
    """Begin the loads that are missing. Not before every node had time to register: what it runs is not missing."""
    if books.leadership is None or not books.observed.was_seen or books.observed.is_young:
        return
    if books.observed.frozen_since_s is not None:
        return
    nodes = tuple(books.observed.nodes.values())
    for name in wished_models(books):
        model = find_model(nodes, name)
        if model is not None and not model.error:
            _keep(books, model, constraints_of(books, name), now_s)
    for name in sorted(books.waits_since_s):
        model = find_model(nodes, name)
        if model is not None and not model.error:
            _scale_up(books, model, now_s)


def _keep(books: Books, model: ModelFile, constraints: Constraints, now_s: float) -> None:
    have, serving = replica_count(books, model.digest), sum(1 for _ in serving_replicas(books, model.digest))
    preloads = constraints.preload and model.name not in books.preloaded
    wanted = max(constraints.replicas_min, 1 if preloads else 0)
    if serving >= wanted:
        books.keep_failures.pop(model.digest, None)
    if have < wanted and (_waits(books, model.digest, now_s) or _waits_to_keep(books, model.digest, now_s)):
        return
    if preloads:
        books.preloaded.add(model.name)
    if have < wanted:
        reason = "replicas_min" if have < constraints.replicas_min else "preload"
        begin_load(books, model, now_s=now_s, is_extra=have > 0, reason=reason)


def replica_count(books: Books, digest: str) -> int:
    """Replicas that serve, and loads that will make one."""
    serving = {runner.placement_id for _, runner in serving_replicas(books, digest)}
    loading = [one for one in books.jobs.values() if one.model_digest == digest]
    return len(serving) + len(loading)


def _waits(books: Books, digest: str, now_s: float) -> bool:
    """Whether the last load of the model failed a moment ago."""
    failures = books.failures.get(digest)
    return failures is not None and now_s < failures.until_s


def _waits_to_keep(books: Books, digest: str, now_s: float) -> bool:
    """Whether there was no room a moment ago; callers need not wait for this."""
    failures = books.keep_failures.get(digest)
    return failures is not None and now_s < failures.until_s


def see_queues(books: Books, gateway_id: str, waits_s: Mapping[str, float], now_s: float) -> None:
    """Take in what a gateway tells about the requests that wait there."""
    books.queue_waits[gateway_id] = (now_s, waits_s)
    follow_queues(books, now_s)


def follow_queues(books: Books, now_s: float) -> None:
    """Remember since when each model's requests have waited too long."""
    for gateway_id in [one for one, (at_s, _) in books.queue_waits.items() if now_s >= at_s + QUEUE_FORGOTTEN_S]:
        del books.queue_waits[gateway_id]
    worst: dict[str, float] = {}
    for at_s, waits_s in books.queue_waits.values():
        for name, wait_s in waits_s.items():
            worst[name] = max(worst.get(name, 0.0), wait_s + (now_s - at_s))
    slow = {name for name, wait_s in worst.items() if wait_s > books.policy.scale_up_wait_s}
    for name in list(books.waits_since_s):
        if name not in slow:
            del books.waits_since_s[name]
    for name in slow:
        books.waits_since_s.setdefault(name, now_s)


def _scale_up(books: Books, model: ModelFile, now_s: float) -> None:
    constraints = constraints_of(books, model.name)
    since_s = books.waits_since_s[model.name]
    have = replica_count(books, model.digest)
    if have == 0 or have >= constraints.replicas_max or now_s < since_s + books.policy.scale_up_after_s:
        return
    if _waits(books, model.digest, now_s) or now_s < books.scale_paused_until_s.get(model.digest, 0.0):
        return
    books.scale_paused_until_s[model.digest] = now_s + SCALE_PAUSE_S
    begin_load(books, model, now_s=now_s, is_extra=True, may_evict=False, reason="queue_wait")
