"""State that the page shows, kept current only while a page is open.

One for all pages: the inventory is fetched once for any number of them. Readers take the newest view when they are
ready for it, so that a slow one skips some and delays no other.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice

from common.clock import MS_PER_S, Clock, SystemClock
from common.errors import PunaError, QueueFull
from common.telemetry.logs import get_logger
from gateway.answers.live import LiveRequest
from gateway.converters.constraints import constraints_from_proto
from gateway.converters.inventory import inventory_nodes
from gateway.core.models.model_card import parameter_size_text
from gateway.core.models.routes import RouteInfo
from gateway.core.request.model_names import parse_model_name
from gateway.core.ui.figures import ChartPoint, LoadPaces, PageCounters, figures_between
from gateway.core.ui.views import Item, View
from gateway.http.endpoint.service import Service
from gateway.http.puna.placements import placement_of

log = get_logger()
TICK_S = 0.5
# The inventory of a large fleet is asked for less often: this many nodes a second.
NODES_PER_S = 50
POLL_S_MIN = 1.0
SAMPLE_S = 1.0
SAMPLES_KEPT = 300
# After this long without a reader the old points say nothing about the new ones.
GAP_S_MAX = 5.0
READERS_MAX = 64
# A page shows so many requests; the counts beside it are of all.
REQUESTS_SHOWN_MAX = 200
_NO_FIGURES = ChartPoint(
    requests_per_s=0.0, tokens_per_s=0.0, prompt_tokens_per_s=0.0, first_token_ms=None, model_tokens_per_s={}
)


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


@dataclass(slots=True)
class Overview:
    """Lives on the event loop."""

    service: Service
    clock: Clock = field(default_factory=SystemClock)
    view: View = field(default_factory=dict)
    _readers: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _nodes: dict[str, Item] = field(default_factory=dict)
    _wanted: dict[str, Mapping[str, object]] = field(default_factory=dict)
    _nodes_at_unix_ms: int | None = None
    _scheduler_error: str | None = None
    _samples: dict[str, Item] = field(default_factory=dict)
    _counters: PageCounters | None = None
    _figures: ChartPoint = _NO_FIGURES
    _paces: LoadPaces = field(default_factory=LoadPaces)

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Keep the view current while the context is open.

        Raises:
            QueueFull: too many look already.
        """
        if self._readers >= READERS_MAX:
            raise QueueFull("too many pages are open", retry_after_s=GAP_S_MAX)
        self._readers += 1
        if self._readers == 1:
            await self._begin()
        try:
            yield
        finally:
            self._readers -= 1
            if self._readers == 0:
                tasks, self._tasks = self._tasks, []
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def next_view(self, timeout_s: float) -> View:
        """Wait for the view after its next change; the same one if nothing changed in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        return self.view

    async def _begin(self) -> None:
        self._tasks = [
            asyncio.create_task(self._keep_cluster_current(), name="overview cluster"),
            asyncio.create_task(self._keep_view_current(), name="overview"),
        ]
        self._refresh()

    async def _keep_cluster_current(self) -> None:
        while True:
            await self._ask_scheduler()
            await asyncio.sleep(max(POLL_S_MIN, len(self._nodes) / NODES_PER_S))

    async def _ask_scheduler(self) -> None:
        scheduler = self.service.scheduler
        try:
            inventory = await scheduler.list_nodes()
            models = await scheduler.list_constraints("")
        except PunaError as error:
            # Known state stays on the page, which shows its age.
            log.debug("overview.scheduler_silent", reason=error.reason)
            self._scheduler_error = error.reason
            return
        self._scheduler_error = None
        self._nodes_at_unix_ms = self._now_unix_ms()
        self._nodes = {str(node["id"]): node for node in inventory_nodes(inventory)}
        self._wanted = {parse_model_name(model.model_name).key: constraints_from_proto(model) for model in models}

    async def _keep_view_current(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._refresh()

    def _refresh(self) -> None:
        live = self.service.live.all()
        self._sample(live)
        by_model: dict[str | None, list[LiveRequest]] = {}
        for one in live:
            by_model.setdefault(one.record.model, []).append(one)
        self.view = {
            "gateway": {"status": self._status()},
            "nodes": self._nodes,
            "models": self._models(by_model),
            "requests": {str(one.number): request_item(one) for one in islice(live, REQUESTS_SHOWN_MAX)},
            "samples": dict(self._samples),
        }
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _status(self) -> Item:
        return {
            "version": self.service.version,
            "draining": self.service.draining,
            "routes_heard": self.service.inference.models.routes.heard,
            "scheduler_error": self._scheduler_error,
            "nodes_at_unix_ms": self._nodes_at_unix_ms,
        }

    def _models(self, live: dict[str | None, list[LiveRequest]]) -> dict[str, Item]:
        dispatcher = self.service.inference.dispatcher
        depths, routes = dispatcher.depths(), dispatcher.routes.all()
        self._paces.keep_only({replica.key for route in routes for replica in route.replicas})
        return {route.model.name: self._model_item(route, live.get(route.model.name, []), depths) for route in routes}

    def _model_item(self, route: RouteInfo, live: list[LiveRequest], depths: Mapping[str, int]) -> Item:
        """Build the item of a model from its requests in progress, its queue depth and its constraints."""
        model, now_s = route.model, self.clock.now_s()
        key = parse_model_name(model.name).key
        pool = self.service.inference.dispatcher.pool
        waiting = [one for one in live if one.state in ("queued", "loading")]
        replicas = []
        for replica in route.replicas:
            page = placement_of(pool, route, replica)
            fraction = page["fraction"]
            left_s = self._paces.seconds_left(replica.key, fraction, now_s) if isinstance(fraction, float) else None
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
            "queued": depths.get(key, 0),
            "waiting": len(waiting),
            "load": _load(waiting),
            "waiting_since_unix_ms": min((one.started_unix_ms for one in waiting), default=None),
            "running": len(live) - len(waiting),
            "tokens_per_s": self._figures.model_tokens_per_s.get(model.name, 0.0),
            "wanted": self._wanted.get(key),
        }

    def _sample(self, live: list[LiveRequest]) -> None:
        now_s = self.clock.now_s()
        before = self._counters
        if before is not None and now_s - before.at_s < SAMPLE_S:
            return
        self._counters = self.service.live.counters(now_s)
        first_tokens_s = self.service.live.new_first_tokens_s()
        if before is None or now_s - before.at_s > GAP_S_MAX:
            return  # no page was open in between: an average over all that time would be no point of these charts
        self._figures = figures_between(before, self._counters, first_tokens_s)
        at_unix_ms = self._now_unix_ms()
        waiting = sum(one.state in ("queued", "loading") for one in live)
        figures = asdict(self._figures)
        del figures["model_tokens_per_s"]  # they are items of the models
        counts = {"waiting": waiting, "running": len(live) - waiting}
        self._samples[str(at_unix_ms)] = {"at_unix_ms": at_unix_ms, **figures, **counts}
        while len(self._samples) > SAMPLES_KEPT:
            del self._samples[next(iter(self._samples))]

    def _now_unix_ms(self) -> int:
        return round(self.clock.wall_unix_s() * MS_PER_S)
