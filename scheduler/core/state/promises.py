"""Promises of memory: every byte of a device that is booked for a placement or a measurement now."""

from collections.abc import Iterable, Iterator

from scheduler.core.planning.lending import booked_bytes, lenders_of, lent_promises, own_report
from scheduler.core.sizes.ledger import LentTo, Need, Promise, freed_by
from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.load_jobs import DONE, LoadJob
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.view import STARTING_STATES, NodeView, RunnerState, RunnerView, cached_per_view


def promises(state: ClusterState, *, but_for: LoadJob | None = None, measurements: bool = True) -> Iterator[Promise]:
    """Yield all promises: loaded, loading, reserved for a load that evicts, and not yet recovered.

    And what running measurements hold, unless the question is what there will be when they are over.
    """
    if measurements:
        yield from measuring_promises(state)
    yield from _placed(state, but_for)


def _placed(state: ClusterState, but_for: LoadJob | None) -> Iterator[Promise]:
    named = set()
    for job in state.jobs_by_age():
        if job is but_for or job.placement is None or job.state in DONE:
            continue
        name = f"load:{job.id}" if job.record is None else job.record.placement_id
        named.add(name)
        placement = job.placement
        yield from start_promises(
            LentTo(placement_id=name, model_name=job.model_name, node_id=placement.node_id), placement.needs
        )
    for stop in state.stops.values():
        if stop.placement_id not in named:
            named.add(stop.placement_id)
            yield from stop.held
    for node_id, runner in state.observed.replicas():
        if runner.placement_id not in named and runner.state is not RunnerState.ERROR:
            named.add(runner.placement_id)
            yield from replica_promises(state, node_id, runner)


def start_promises(start: LentTo, needs: Iterable[Need]) -> Iterator[Promise]:
    """Yield the promises of a start: its own node first, then the lenders."""
    by_node: dict[str, dict[str, int]] = {start.node_id: {}}
    for need in needs:
        held = by_node.setdefault(need.node_id, {})
        held[need.device_id] = held.get(need.device_id, 0) + need.total_bytes
    for node_id, held in by_node.items():
        yield Promise(
            placement_id=start.placement_id,
            node_id=node_id,
            device_bytes=held,
            starting=True,
            lent_to=start if node_id != start.node_id else None,
        )


def measuring_promises(state: ClusterState) -> Iterator[Promise]:
    """Yield a measurement's promises: a context on each device of its layout, and its process in RAM, for tens of ms.

    Where its load has a place already that place covers as much of it.
    """
    for head_id, running in state.measuring.items():
        reserved = {
            (need.node_id, need.device_id): need.total_bytes
            for job in state.jobs.values()
            if job.measuring == running.key and job.placement is not None
            for need in job.placement.needs
        }
        by_node: dict[str, dict[str, int]] = {}
        for (node_id, device_id), count in running.holds.items():
            more = count - reserved.get((node_id, device_id), 0)
            if more > 0 and state.node(node_id) is not None:
                by_node.setdefault(node_id, {})[device_id] = more
        for node_id, held in by_node.items():
            yield Promise(
                placement_id=f"measurement:{head_id}",
                node_id=node_id,
                device_bytes=held,
                starting=True,
                is_measurement=True,
            )


def replica_promises(state: ClusterState, node_id: str, runner: RunnerView) -> tuple[Promise, ...]:
    """Return the promises of a running replica: its own node first, then the lenders.

    Computed once for a report, a record and a node as they are: values are replaced, never changed.
    """
    node, record = state.node(node_id), state.desired.get(runner.placement_id)
    if node is None or lenders_of(runner.layout):
        return tuple(_replica_promises(state, node_id, runner))
    cache = _promise_cache(node)
    known = cache.get(runner.placement_id)
    if known is None or known[0] is not runner or known[1] is not record:
        known = cache[runner.placement_id] = runner, record, tuple(_replica_promises(state, node_id, runner))
    return known[2]


@cached_per_view
def _promise_cache(_: NodeView) -> dict[str, tuple[RunnerView, DesiredPlacement | None, tuple[Promise, ...]]]:
    """Return the cache of promises by placement, each with the report and the record that it follows from."""
    return {}


def _replica_promises(state: ClusterState, node_id: str, runner: RunnerView) -> Iterator[Promise]:
    yield replica_promise(state, node_id, runner)
    record = state.desired.get(runner.placement_id)
    yield from lent_promises(
        LentTo(placement_id=runner.placement_id, model_name=runner.model_name, node_id=node_id),
        runner.layout,
        (runner.memory, record.planned if record is not None else None),
        state.observed.nodes,
        state.policy,
        starting=runner.state in STARTING_STATES,
    )


def replica_promise(state: ClusterState, node_id: str, runner: RunnerView) -> Promise:
    """Return the promise of a running replica on its own node: the largest of plan, report and the driver's figure."""
    node = state.node(node_id)
    host = node.host_device if node is not None else None
    record = state.desired.get(runner.placement_id)
    counted: dict[str, int] = {}
    allocated = own_report(runner.layout, runner.memory)
    planned = own_report(record.layout, record.planned) if record is not None else None
    for report in (allocated, planned):
        if report is None:
            continue
        parts = [(part.device_id, part.total_bytes) for part in report.devices]
        if host is not None:
            parts.append((host.id, report.host.total_bytes))
        for device_id, count in parts:
            counted[device_id] = max(counted.get(device_id, 0), count)
    return Promise(
        placement_id=runner.placement_id,
        node_id=node_id,
        device_bytes=booked_bytes(node, runner.placement_id, counted, state.policy),
        starting=runner.state in STARTING_STATES,
        freed_bytes=freed_by(runner.layout, allocated, host.id if host is not None else ""),
    )
