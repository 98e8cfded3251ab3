"""Queues and replicas on the Prometheus page, read when it is asked for."""

from collections import Counter
from collections.abc import Iterator

from common.metrics import Sample
from gateway import metrics
from gateway.core.routes import ReplicaState
from gateway.replicas.dispatch import Dispatcher

_UNREACHABLE = "unreachable"


def route_samples(dispatcher: Dispatcher) -> Iterator[Sample]:
    """One depth and one age for each model of the routes, and its replicas by state; zeros are shown, too."""
    waits = dispatcher.waits_s()
    for route in dispatcher.routes.all():
        name = route.model.name
        waiting, oldest_s = waits.get(name, (0, 0.0))
        yield Sample(metrics.QUEUE_DEPTH, waiting, (name,))
        yield Sample(metrics.QUEUE_OLDEST_S, oldest_s, (name,))
        states = Counter({str(state): 0 for state in (*ReplicaState, _UNREACHABLE)})
        for replica in route.replicas:
            load = dispatcher.pool.load_of(replica.key)
            reachable = load is not None and load.reachable
            states[str(load.state) if load is not None and reachable else _UNREACHABLE] += 1
        for state, count in states.items():
            yield Sample(metrics.REPLICAS, count, (name, state))
