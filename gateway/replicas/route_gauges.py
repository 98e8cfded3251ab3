"""Queues, replicas and the ages of what was heard on the Prometheus page, read when it is asked for."""

from collections import Counter
from collections.abc import Iterator

from common.clock import Clock
from common.telemetry.metrics import Sample
from gateway import metrics
from gateway.core.models.routes import ReplicaState, RouteInfo
from gateway.replicas.dispatch import Dispatcher

_UNREACHABLE = "unreachable"


class RouteGauges:
    """Knows when the routes last changed; reads everything else where it is."""

    def __init__(self, dispatcher: Dispatcher, clock: Clock) -> None:
        """Start: ages begin with the next change."""
        self._dispatcher = dispatcher
        self._clock = clock
        self._changed_s: float | None = None
        dispatcher.routes.subscribe(self._hear)

    def _hear(self) -> None:
        self._changed_s = self._clock.now_s()

    def samples(self) -> Iterator[Sample]:
        """Yield one depth and one age for each model of the routes, and its replicas by state; zeros are shown, too."""
        if self._changed_s is not None:
            yield Sample(metrics.ROUTES_AGE_S, self._clock.now_s() - self._changed_s)
        waits = self._dispatcher.waits_s()
        for route in self._dispatcher.routes.all():
            name = route.model.name
            waiting, oldest_s = waits.get(name, (0, 0.0))
            yield Sample(metrics.QUEUE_DEPTH, waiting, (name,))
            yield Sample(metrics.QUEUE_OLDEST_S, oldest_s, (name,))
            yield from self._of_replicas(route)

    def _of_replicas(self, route: RouteInfo) -> Iterator[Sample]:
        pool, name = self._dispatcher.pool, route.model.name
        states = Counter({str(state): 0 for state in (*ReplicaState, _UNREACHABLE)})
        for replica in route.replicas:
            load = pool.load_of(replica.key)
            reachable = load is not None and load.reachable
            states[str(load.state) if load is not None and reachable else _UNREACHABLE] += 1
        for state, count in states.items():
            yield Sample(metrics.REPLICAS, count, (name, state))
        ages = [age for replica in route.replicas if (age := pool.report_age_s(replica.key)) is not None]
        if ages:
            yield Sample(metrics.REPORT_AGE_S, max(ages), (name,))
