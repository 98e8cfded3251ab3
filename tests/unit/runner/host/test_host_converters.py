"""Bytes of a memory report that the host counts."""

from pathlib import Path

import pytest

from protos import cluster_pb2, host_pb2
from runner.host.converters import to_need, to_terms
from runner.host.lending.tunnel_identity import make_identity

CARD = cluster_pb2.DeviceMemory(device_id="gpu", weights_bytes=100, cache_bytes=20, graph_bytes=3, projector_bytes=5000)


@pytest.mark.behaviour("B-73")
def test_a_projector_takes_memory_like_everything_else() -> None:
    host = cluster_pb2.DeviceMemory(weights_bytes=7, projector_bytes=400)
    need = to_need(cluster_pb2.MemoryReport(devices=[CARD], host=host))
    assert need.total_bytes() == {"cpu": 407, "gpu": 5123}


@pytest.mark.behaviour("B-73")
def test_a_projector_on_a_lent_device_is_lent_memory(tmp_path: Path) -> None:
    certificate = make_identity(tmp_path / "identity.pem", node_id="a").certificate
    request = host_pb2.LendRequest(devices=[host_pb2.LentShare(planned=CARD)], borrower_certificate=certificate)
    (share,) = to_terms(request).shares
    assert (share.weights_bytes, share.later_bytes) == (100, 5023)


def test_what_lies_on_other_nodes_is_theirs() -> None:
    far = cluster_pb2.DeviceMemory(device_id="gpu", node_id="b", weights_bytes=9)
    assert to_need(cluster_pb2.MemoryReport(devices=[far])).total_bytes() == {"cpu": 0}
