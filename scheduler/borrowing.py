"""Has other nodes lend what a measurement or a start needs, and ends what is lent when nothing came of it."""

import asyncio
from collections.abc import Callable

from common.errors import PunaError
from common.telemetry.logs import get_logger
from protos import cluster_pb2, host_pb2
from runner.host.client import HostClient
from scheduler.converters import DEVICE_BYTES, MEMORY_REPORT, fault_of
from scheduler.core.planning.lending import Loan, Loans
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.faults import Fault

log = get_logger()


class LendingFailedError(Exception):
    """A node does not lend. What others had lent already was given back."""

    def __init__(self, node_id: str, fault: Fault) -> None:
        super().__init__(fault.message)
        self.node_id = node_id
        self.fault = fault


async def borrow(hosts: HostClient, loans: Loans, *, check: Callable[[int], None]) -> list[host_pb2.Peer]:
    """Have every node lend, all at the same time; returns what the head needs to know of them.

    Raises:
        LendingFailedError: see there; of several the first.
        StaleFence: `check` says that this scheduler does not lead any more.
    """
    check(loans.fence)
    answers = await asyncio.gather(*(_lend(hosts, loans, loan) for loan in loans.loans), return_exceptions=True)
    peers: list[host_pb2.Peer] = []
    for loan, answer in zip(loans.loans, answers, strict=True):
        if isinstance(answer, host_pb2.Peer):
            peers.append(answer)
            continue
        await give_back(hosts, loans)
        if isinstance(answer, PunaError):
            raise LendingFailedError(loan.node_id, fault_of(answer)) from answer
        raise answer
    return peers


async def give_back(hosts: HostClient, loans: Loans) -> None:
    """End every lease. One that cannot be reached ends by itself without a borrower."""
    request = host_pb2.StopRequest(fence=_fence(loans), placement=_reference(loans))
    ends = await asyncio.gather(*(hosts.stop(loan.address, request) for loan in loans.loans), return_exceptions=True)
    for loan, end in zip(loans.loans, ends, strict=True):
        if isinstance(end, PunaError):
            log.info("devices.not_returned", node=loan.node_id, placement=loans.placement_id, text=end.message)
        elif isinstance(end, BaseException):
            raise end


def planned_on(record: DesiredPlacement) -> cluster_pb2.MemoryReport:
    """Return the planned report of a placement; devices of other nodes are marked, so that the head skips them."""
    assert record.planned is not None, "asked for where there is one"
    report = MEMORY_REPORT.to_proto(record.planned)
    if len(report.devices) == len(record.layout.devices):
        for memory, layers in zip(report.devices, record.layout.devices, strict=True):
            memory.node_id = layers.node_id
    return report


async def _lend(hosts: HostClient, loans: Loans, loan: Loan) -> host_pb2.Peer:
    request = host_pb2.LendRequest(
        fence=_fence(loans),
        placement=_reference(loans),
        borrower_node_id=loans.borrower_node_id,
        borrower_certificate=loans.borrower_certificate,
        devices=[host_pb2.LentShare(planned=DEVICE_BYTES.to_proto(planned)) for planned in loan.planned],
    )
    response = await hosts.lend(loan.address, request)
    return host_pb2.Peer(
        node_id=loan.node_id,
        lease=_reference(loans),
        tunnel_address=response.tunnel_address,
        certificate=response.certificate,
        devices=response.devices,
    )


def _fence(loans: Loans) -> host_pb2.Fence:
    return host_pb2.Fence(number=loans.fence, leader_id=loans.leader_id)


def _reference(loans: Loans) -> cluster_pb2.PlacementRef:
    return cluster_pb2.PlacementRef(placement_id=loans.placement_id, generation=loans.generation)
