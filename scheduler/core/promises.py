"""Everything that is promised now, as the books have it."""

from collections.abc import Iterator

from scheduler.core.books import Books
from scheduler.core.ledger import Promise, freed_by, reserve_bytes
from scheduler.core.load_jobs import DONE, LoadJob
from scheduler.core.view import STARTING_STATES, RunnerState, RunnerView


def promises(books: Books, *, but_for: LoadJob | None = None) -> Iterator[Promise]:
    """Everything that is promised now: loaded, loading, reserved for a load that evicts, and not yet come back."""
    named = set()
    for job in books.jobs_by_age():
        if job is but_for or job.placement is None or job.state in DONE:
            continue
        name = f"load:{job.id}" if job.record is None else job.record.placement_id
        named.add(name)
        needs = {need.device_id: 0 for need in job.placement.needs}
        for need in job.placement.needs:
            needs[need.device_id] += need.total_bytes
        yield Promise(placement_id=name, node_id=job.placement.node_id, device_bytes=needs, starting=True)
    for stop in books.stops.values():
        if stop.placement_id not in named:
            named.add(stop.placement_id)
            yield stop.promise
    for node_id, runner in books.observed.replicas():
        if runner.placement_id not in named and runner.state is not RunnerState.ERROR:
            named.add(runner.placement_id)
            yield replica_promise(books, node_id, runner)


def replica_promise(books: Books, node_id: str, runner: RunnerView) -> Promise:
    """What a running replica holds: the larger of plan and report, and what every process takes on a device."""
    node = books.node(node_id)
    host = node.host_device if node is not None else None
    record = books.desired.get(runner.placement_id)
    counted: dict[str, int] = {}
    for report in (runner.memory, record.planned if record is not None else None):
        if report is None:
            continue
        parts = [(part.device_id, part.total_bytes) for part in report.devices]
        if host is not None:
            parts.append((host.id, report.host.total_bytes))
        for device_id, count in parts:
            counted[device_id] = max(counted.get(device_id, 0), count)
    for device_id in counted:
        device = node.device(device_id) if node is not None else None
        counted[device_id] += reserve_bytes(device, books.policy) if device is not None else 0
    return Promise(
        placement_id=runner.placement_id,
        node_id=node_id,
        device_bytes=counted,
        starting=runner.state in STARTING_STATES,
        freed_bytes=freed_by(runner.layout, runner.memory, host.id if host is not None else ""),
    )
