"""Which replicas take requests, and which of them will do for one."""

from collections.abc import Iterator

from scheduler.core.books.books import Books
from scheduler.core.values.asked import LoadOptions
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.view import SERVING_STATES, RunnerView


def serving_replicas(books: Books, model_digest: str) -> Iterator[tuple[str, RunnerView]]:
    """Replicas of a model that take requests."""
    for node_id, runner in books.observed.replicas():
        if (
            runner.model_digest == model_digest
            and runner.state in SERVING_STATES
            and runner.placement_id not in books.stops
        ):
            yield node_id, runner


def will_do(books: Books, node_id: str, runner: RunnerView, *, wanted_tokens: int | None, options: LoadOptions) -> bool:
    """Whether a replica serves a request as it asked to be served: what was left open matches anything."""
    if (wanted_tokens or 0) > runner.layout.context_tokens:
        return False
    if options.main_gpu is not None and not _is_on_main(books, node_id, runner, options):
        return False
    if not options.require_gpu and options.num_gpu is None:
        return True
    layers = _layers(books, runner)
    on_devices = sum(device.layer_count for device in runner.layout.devices)
    if options.require_gpu and on_devices < layers:
        return False
    return options.num_gpu is None or on_devices == min(options.num_gpu, layers)


def _is_on_main(books: Books, node_id: str, runner: RunnerView, options: LoadOptions) -> bool:
    """Whether a replica that needs one GPU alone is on the one that was asked for."""
    layout, node = runner.layout, books.node(node_id)
    is_whole = sum(device.layer_count for device in layout.devices) >= _layers(books, runner)
    if len(layout.devices) != 1 or not is_whole or layout.experts_on_host or node is None:
        return True
    main = Constraints(main_gpu=options.main_gpu).main_device(node)
    return main is not None and layout.devices[0].device_id == main.id


def _layers(books: Books, runner: RunnerView) -> int:
    """Blocks and the output."""
    for node in books.observed.nodes.values():
        model = node.model(runner.model_digest)
        if model is not None:
            return model.layer_count + 1
    return sum(device.layer_count for device in runner.layout.devices)
