"""Replicas that take requests, and those that suit one request."""

from collections.abc import Iterator

from common.spec.load_options import LoadOptions
from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.view import SERVING_STATES, RunnerView


def serving_replicas(state: ClusterState, model_digest: str) -> Iterator[tuple[str, RunnerView]]:
    """Yield the replicas of a model that take requests."""
    for node_id, runner in state.observed.replicas():
        if (
            runner.model_digest == model_digest
            and runner.state in SERVING_STATES
            and runner.placement_id not in state.stops
        ):
            yield node_id, runner


def will_do(
    state: ClusterState, node_id: str, runner: RunnerView, *, wanted_tokens: int | None, options: LoadOptions
) -> bool:
    """Return True if a replica suits a request: an unset option matches anything."""
    if (wanted_tokens or 0) > runner.layout.context_tokens:
        return False
    if options.main_gpu is not None and not _is_on_main(state, node_id, runner, options):
        return False
    if not options.require_gpu and options.num_gpu is None:
        return True
    layers = _layers(state, runner)
    on_devices = sum(device.layer_count for device in runner.layout.devices)
    if options.require_gpu and on_devices < layers:
        return False
    return options.num_gpu is None or on_devices == min(options.num_gpu, layers)


def _is_on_main(state: ClusterState, node_id: str, runner: RunnerView, options: LoadOptions) -> bool:
    """Return True if a replica that needs a single GPU is on the requested one."""
    layout, node = runner.layout, state.node(node_id)
    is_whole = sum(device.layer_count for device in layout.devices) >= _layers(state, runner)
    if len(layout.devices) != 1 or not is_whole or layout.experts_on_host or node is None:
        return True
    main = Constraints(main_gpu=options.main_gpu).main_device(node)
    return main is not None and layout.devices[0].device_id == main.id


def _layers(state: ClusterState, runner: RunnerView) -> int:
    """Count the blocks and the output."""
    for node in state.observed.nodes.values():
        model = node.model(runner.model_digest)
        if model is not None:
            return model.layer_count + 1
    return sum(device.layer_count for device in runner.layout.devices)
