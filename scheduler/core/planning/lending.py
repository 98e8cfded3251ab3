"""Placements over several nodes: what other nodes lend to the one that runs them, and what that promises there.

The node of a placement is its head: it runs the model. Every other node of the layout lends exactly the devices that
the layout names there, before anything is measured or started. A lender that is gone takes the placement with it, and
nothing else: its runner ends, and the next plan does without that node.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from common.spec.layout import DeviceLayers, Layout
from scheduler.core.sizes.ledger import LentTo, Promise, reserve_bytes
from scheduler.core.values.memory import DeviceBytes, MemoryReport
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import NodeView


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """Loan of one node; `planned` has an entry for each device."""

    node_id: str
    address: str
    planned: tuple[DeviceBytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loans:
    """Everything that has to be lent before a layout can be measured or started on its head."""

    fence: int
    leader_id: str
    placement_id: str
    generation: int
    borrower_node_id: str
    borrower_certificate: bytes
    loans: tuple[Loan, ...]


class LenderGone(Exception):
    """A node of the layout is not there, or does not lend. Plan again without it."""

    def __init__(self, node_id: str) -> None:
        super().__init__(f"node {node_id} lends no devices any more")
        self.node_id = node_id


def lenders_of(layout: Layout) -> tuple[str, ...]:
    """Return the ids of the nodes that lend to a placement, in layer order."""
    if not any(part.node_id for part in layout.devices):
        return ()
    return tuple(dict.fromkeys(part.node_id for part in layout.devices if part.node_id))


def nodes_of(owner: str, layout: Layout) -> set[str]:
    """Return every node that a placement uses."""
    return {owner, *lenders_of(layout)}


def loans_of(layout: Layout, planned: MemoryReport | None, nodes: Mapping[str, NodeView]) -> tuple[Loan, ...]:
    """Return the loans of all other nodes for a layout.

    Raises:
        LenderGone: see there.
    """
    loans = []
    for node_id in lenders_of(layout):
        node = nodes.get(node_id)
        if node is None or not node.rpc_enabled:
            raise LenderGone(node_id)
        parts = [(layers.device_id, counted) for layers, counted in _lent(layout, planned) if layers.node_id == node_id]
        shares = tuple(replace(counted, device_id=device_id, node_id="") for device_id, counted in parts)
        loans.append(Loan(node_id=node_id, address=node.address, planned=shares))
    return tuple(loans)


def loans_for(  # a command's parts
    layout: Layout,
    planned: MemoryReport | None,
    nodes: Mapping[str, NodeView],
    *,
    head: NodeView,
    reference: tuple[str, int],
    command: tuple[int, str],
) -> Loans | None:
    """Return the loans that a layout needs before its use on `head`; None if all of it is there.

    `reference` is placement id and generation, `command` fence and leader.

    Raises:
        LenderGone: see there.
    """
    loans = loans_of(layout, planned, nodes)
    if not loans:
        return None
    return Loans(
        fence=command[0],
        leader_id=command[1],
        placement_id=reference[0],
        generation=reference[1],
        borrower_node_id=head.id,
        borrower_certificate=head.tunnel_certificate,
        loans=loans,
    )


def lent_promises(
    borrower: LentTo,
    layout: Layout,
    reports: tuple[MemoryReport | None, ...],
    nodes: Mapping[str, NodeView],
    policy: Policy,
    *,
    starting: bool,
) -> Iterator[Promise]:
    """Yield the promises of a placement on its lenders: the largest of the reports, and the cost of each process."""
    counted: dict[tuple[str, str], int] = {}
    for report in reports:
        for layers, part in _lent(layout, report):
            key = (layers.node_id, layers.device_id)
            counted[key] = max(counted.get(key, 0), part.total_bytes)
    for node_id in lenders_of(layout):
        lent = {device_id: count for (owner, device_id), count in counted.items() if owner == node_id}
        yield Promise(
            placement_id=borrower.placement_id,
            node_id=node_id,
            device_bytes=booked_bytes(nodes.get(node_id), borrower.placement_id, lent, policy),
            starting=starting,
            lent_to=borrower,
            freed_bytes=lent,
        )


def booked_bytes(
    node: NodeView | None, placement_id: str, counted: Mapping[str, int], policy: Policy
) -> dict[str, int]:
    """Return counted bytes by device with the cost of a process on each, or the driver's figure if that is more."""
    booked = dict(counted)
    for device_id, count in counted.items():
        device = node.device(device_id) if node is not None else None
        if device is not None:
            holder = device.holder(placement_id)
            held = holder.held_bytes if holder is not None else 0
            booked[device_id] = max(count + reserve_bytes(device, policy), held)
    return booked


def own_report(layout: Layout, report: MemoryReport | None) -> MemoryReport | None:
    """Return a report without the devices of other nodes."""
    if report is None or not lenders_of(layout):
        return report
    if len(report.devices) != len(layout.devices):
        return replace(report, devices=tuple(part for part in report.devices if not part.node_id))
    pairs = zip(layout.devices, report.devices, strict=True)
    return replace(report, devices=tuple(part for layers, part in pairs if not layers.node_id))


def _lent(layout: Layout, report: MemoryReport | None) -> Iterator[tuple[DeviceLayers, DeviceBytes]]:
    """Yield devices of other nodes with their bytes: reports have the devices in the layout's order."""
    counted = report.devices if report is not None and len(report.devices) == len(layout.devices) else ()
    for index, layers in enumerate(layout.devices):
        if layers.node_id:
            yield layers, counted[index] if counted else DeviceBytes()
