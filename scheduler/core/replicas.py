"""Which replicas take requests."""

from collections.abc import Iterator

from scheduler.core.books import Books
from scheduler.core.view import SERVING_STATES, RunnerView


def serving_replicas(books: Books, model_digest: str) -> Iterator[tuple[str, RunnerView]]:
    """Replicas of a model that take requests."""
    for node_id, runner in books.observed.replicas():
        if (
            runner.model_digest == model_digest
            and runner.state in SERVING_STATES
            and runner.placement_id not in books.stops
        ):
            yield node_id, runner
