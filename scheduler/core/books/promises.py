"""Everything that is promised now, as the books have it."""

from collections.abc import Iterator

from scheduler.core.books.books import Books
from scheduler.core.books.load_jobs import DONE, LoadJob
from scheduler.core.planning.lending import lenders_of, lent_promises, own_report
from scheduler.core.sizes.ledger import LentTo, Promise, freed_by, reserve_bytes
from scheduler.core.values.view import STARTING_STATES, RunnerState, RunnerView


def promises(books: Books, *, but_for: LoadJob | None = None, measurements: bool = True) -> Iterator[Promise]:
    """Everything that is promised now: loaded, loading, reserved for a load that evicts, and not yet come back.

    And what running measurements hold, unless the question is what there will be when they are over.
    """
    if measurements:
        yield from measuring_promises(books)
    yield from _placed(books, but_for)


def _placed(books: Books, but_for: LoadJob | None) -> Iterator[Promise]:
    named = set()
    for job in books.jobs_by_age():
        if job is but_for or job.placement is None or job.state in DONE:
            continue
        name = f"load:{job.id}" if job.record is None else job.record.placement_id
        named.add(name)
        by_node: dict[str, dict[str, int]] = {job.placement.node_id: {}}
        for need in job.placement.needs:
            held = by_node.setdefault(need.node_id or job.placement.node_id, {})
            held[need.device_id] = held.get(need.device_id, 0) + need.total_bytes
        for node_id, held in by_node.items():
            lent_to = LentTo(placement_id=name, model_name=job.model_name, node_id=job.placement.node_id)
            yield Promise(
                placement_id=name,
                node_id=node_id,
                device_bytes=held,
                starting=True,
                lent_to=lent_to if node_id != lent_to.node_id else None,
            )
    for stop in books.stops.values():
        if stop.placement_id not in named:
            named.add(stop.placement_id)
            yield from stop.held
    for node_id, runner in books.observed.replicas():
        if runner.placement_id not in named and runner.state is not RunnerState.ERROR:
            named.add(runner.placement_id)
            yield from replica_promises(books, node_id, runner)


def measuring_promises(books: Books) -> Iterator[Promise]:
    """A measurement holds a context on each device of its layout, and itself in RAM, for some tens of milliseconds.

    Where its load has a place already that place covers as much of it.
    """
    for head_id, running in books.measuring.items():
        reserved = {
            (need.node_id or job.placement.node_id, need.device_id): need.total_bytes
            for job in books.jobs.values()
            if job.measuring == running.key and job.placement is not None
            for need in job.placement.needs
        }
        by_node: dict[str, dict[str, int]] = {}
        for (node_id, device_id), count in running.holds.items():
            more = count - reserved.get((node_id, device_id), 0)
            if more > 0 and books.node(node_id) is not None:
                by_node.setdefault(node_id, {})[device_id] = more
        for node_id, held in by_node.items():
            yield Promise(
                placement_id=f"measurement:{head_id}",
                node_id=node_id,
                device_bytes=held,
                starting=True,
                is_measurement=True,
            )


def replica_promises(books: Books, node_id: str, runner: RunnerView) -> tuple[Promise, ...]:
    """What a running replica holds, on its own node first, then on those that lend to it.

    Worked out once for a report, a record and a node as they are: values are replaced, never changed.
    """
    node, record = books.node(node_id), books.desired.get(runner.placement_id)
    if node is None or lenders_of(runner.layout):
        return tuple(_replica_promises(books, node_id, runner))
    key = ("promise", runner.placement_id)
    known = node.memo.get(key)
    if known is None or known[0] is not runner or known[1] is not record:
        known = node.memo[key] = runner, record, tuple(_replica_promises(books, node_id, runner))
    found: tuple[Promise, ...] = known[2]
    return found


def _replica_promises(books: Books, node_id: str, runner: RunnerView) -> Iterator[Promise]:
    yield replica_promise(books, node_id, runner)
    record = books.desired.get(runner.placement_id)
    yield from lent_promises(
        LentTo(placement_id=runner.placement_id, model_name=runner.model_name, node_id=node_id),
        runner.layout,
        (runner.memory, record.planned if record is not None else None),
        books.observed.nodes,
        books.policy,
        starting=runner.state in STARTING_STATES,
    )


def replica_promise(books: Books, node_id: str, runner: RunnerView) -> Promise:
    """What a running replica holds on its own node: the largest of plan, report and what its driver says of it."""
    node = books.node(node_id)
    host = node.host_device if node is not None else None
    record = books.desired.get(runner.placement_id)
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
    for device_id, count in counted.items():
        device = node.device(device_id) if node is not None else None
        if device is not None:
            holder = device.holder(runner.placement_id)
            held = holder.held_bytes if holder is not None else 0
            counted[device_id] = max(count + reserve_bytes(device, books.policy), held)
    return Promise(
        placement_id=runner.placement_id,
        node_id=node_id,
        device_bytes=counted,
        starting=runner.state in STARTING_STATES,
        freed_bytes=freed_by(runner.layout, allocated, host.id if host is not None else ""),
    )
