"""The items of the page's view: models, requests and figures as JSON."""

from collections.abc import Iterable, Mapping

from gateway.answers.live import LiveRequest
from gateway.core.models.model_text import parameter_size_text
from gateway.core.models.routes import RouteInfo
from gateway.core.ui.changes import Item
from gateway.core.ui.figures import ChartPoint
from gateway.core.ui.pace import LoadPaces
from gateway.http.puna.placements import placement_of
from gateway.replicas.replicas import ReplicaPool


def model_item(
    route: RouteInfo,
    *,
    pool: ReplicaPool,
    live: list[LiveRequest],
    depth: int,
    tokens_per_s: float,
    wanted: Mapping[str, object] | None,
    paces: LoadPaces,
    now_s: float,
) -> Item:
    """Build the item of a model from its requests in progress, its queue depth and its constraints."""
    model = route.model
    waiting = [one for one in live if one.state in ("queued", "loading")]
    replicas = []
    for replica in route.replicas:
        page = placement_of(pool, route, replica)
        fraction = page["fraction"]
        left_s = paces.seconds_left(replica.key, fraction, now_s) if isinstance(fraction, float) else None
        replicas.append({**page, "load_seconds_left": left_s, "keep_alive_ms": replica.keep_alive_ms})
    return {
        "name": model.name,
        "title": model.title,
        "digest": model.digest,
        "architecture": model.architecture,
        "parameters": parameter_size_text(model.parameter_count),
        "quantization": model.quantization,
        "size_bytes": model.size_bytes,
        "context_tokens": model.context_tokens,
        "capabilities": list(model.capabilities),
        "error": model.error or None,
        "replicas": replicas,
        "queued": depth,
        "waiting": len(waiting),
        "load": _load(waiting),
        "waiting_since_unix_ms": min((one.started_unix_ms for one in waiting), default=None),
        "running": len(live) - len(waiting),
        "tokens_per_s": tokens_per_s,
        "wanted": wanted,
    }


def request_item(live: LiveRequest) -> Item:
    """Build the item of a request in progress: counts and names, never content."""
    record = live.record
    return {
        "id": live.id,
        "key": live.key_id,
        "model": record.model,
        "route": record.route,
        "state": live.state,
        "progress": _progress(live),
        "started_unix_ms": live.started_unix_ms,
        "first_token_ms": None if record.first_token_s is None else round(record.first_token_s * 1000, 1),
        "prompt_tokens": record.prompt_tokens,
        "tokens": record.answer_tokens,
        "node": record.node,
    }


def figures_item(figures: ChartPoint, *, at_unix_ms: int, waiting: int, running: int) -> Item:
    """Build the item of a point of the charts."""
    return {
        "at_unix_ms": at_unix_ms,
        "requests_per_s": figures.requests_per_s,
        "tokens_per_s": figures.tokens_per_s,
        "prompt_tokens_per_s": figures.prompt_tokens_per_s,
        "first_token_ms": figures.first_token_ms,
        "waiting": waiting,
        "running": running,
    }


def _load(waiting: Iterable[LiveRequest]) -> Item | None:
    """Return the last progress sent to the oldest request that waits for a load; None if none waits."""
    for one in waiting:
        progress = one.progress
        # A request that only waits for a slot has neither.
        if progress is not None and (progress.waits_for or progress.eta_s is not None):
            return {"waits_for": progress.waits_for or None, "ready_at_unix_ms": one.ready_unix_ms}
    return None


def _progress(live: LiveRequest) -> float | int | None:
    """Return the position of a request that queues, how much of its model is loaded, or nothing."""
    if live.progress is None or live.record.replica is not None:
        return None
    return getattr(live.progress, "position", None) or getattr(live.progress, "fraction", None)
