"""Protos to the core's values."""

from common.errors import InvalidRequest
from protos import cluster_pb2, host_pb2
from runner.core.devices.devices import CPU_ID
from runner.core.host.leases import Share, Terms
from runner.core.host.promises import MemoryNeed
from runner.host.lending.tunnel_identity import is_certificate


def to_need(report: cluster_pb2.MemoryReport) -> MemoryNeed:
    """Bytes by device of this node; what lies in host RAM counts for the CPU."""
    weights: dict[str, int] = {}
    later: dict[str, int] = {}
    here = [(memory.device_id, memory) for memory in report.devices if not memory.node_id]
    for device_id, memory in [(CPU_ID, report.host), *here]:
        weights[device_id] = weights.get(device_id, 0) + memory.weights_bytes
        later[device_id] = later.get(device_id, 0) + _later_bytes(memory)
    return MemoryNeed(weights_bytes=weights, later_bytes=later)


def _later_bytes(memory: cluster_pb2.DeviceMemory) -> int:
    """Return the bytes that are taken after the weights."""
    return memory.cache_bytes + memory.graph_bytes + memory.projector_bytes


def to_terms(request: host_pb2.LendRequest) -> Terms:
    """Convert a request for a lease.

    Raises:
        InvalidRequest: no devices, one of them twice, or no certificate.
    """
    ids = [share.planned.device_id for share in request.devices]
    if not ids or len(set(ids)) != len(ids) or not all(ids):
        raise InvalidRequest("a lease needs devices, each once", param="devices")
    if not is_certificate(request.borrower_certificate):
        raise InvalidRequest("a lease needs the borrower's certificate", param="borrower_certificate")
    return Terms(
        borrower_certificate=request.borrower_certificate,
        shares=tuple(
            Share(
                device_id=share.planned.device_id,
                weights_bytes=share.planned.weights_bytes,
                later_bytes=_later_bytes(share.planned),
                max_bytes=share.max_bytes,
            )
            for share in request.devices
        ),
    )
