"""Layouts and reports of runners that borrow devices: names that are unique in the runner, and back."""

import pytest

from common.errors import ModelUnavailable, StartupError
from protos import cluster_pb2
from runner.host.lending.borrowing import addressed, lent_name, renamed
from runner.host.lending.tunnel_listener import _advertised, _beside
from runner.host.settings import HostSettings


def layout(*devices: tuple[str, str]) -> cluster_pb2.Layout:
    found = cluster_pb2.Layout()
    for node_id, device_id in devices:
        found.devices.add(node_id=node_id, device_id=device_id, layer_count=1)
    return found


class Borrowed:
    """Every device of every node, each at a port of its own."""

    def address_of(self, device: cluster_pb2.DeviceLayers) -> tuple[str, int]:
        return f"127.0.0.1:{ord(device.node_id)}", 2


def test_devices_of_one_id_on_two_nodes_stay_apart() -> None:
    asked = layout(("x", "gpu"), ("y", "gpu"), ("", "gpu"))
    given = addressed(asked, Borrowed())  # type: ignore[arg-type]
    assert [device.device_id for device in given.devices] == ["x/gpu", "y/gpu", "gpu"]
    assert [device.rpc_address for device in given.devices] == ["127.0.0.1:120", "127.0.0.1:121", ""]
    assert asked == layout(("x", "gpu"), ("y", "gpu"), ("", "gpu")), "what was asked is not changed"


def test_a_device_of_an_rpc_server_of_this_node_is_dialled_directly() -> None:
    (device,) = addressed(layout(("", "RPC:127.0.0.1:5001/3")), None).devices
    assert (device.rpc_address, device.rpc_device) == ("127.0.0.1:5001", 3)


def test_a_layout_with_devices_that_nobody_lends_is_not_started() -> None:
    with pytest.raises(ModelUnavailable, match="no peer lends device gpu of node x"):
        addressed(layout(("x", "gpu")), None)


def test_reports_name_the_node_again() -> None:
    asked = layout(("x", "a/b"), ("", "gpu"))
    said = cluster_pb2.MemoryReport()
    said.devices.add(device_id=lent_name("x", "a/b"), weights_bytes=1)
    said.devices.add(device_id="gpu", weights_bytes=2)
    told = renamed(said, asked)
    assert [(one.node_id, one.device_id) for one in told.devices] == [("x", "a/b"), ("", "gpu")]


@pytest.mark.parametrize(
    ("listen", "beside"), [("10.0.0.5:7603", "10.0.0.5:0"), ("[::1]:7603", "[::1]:0"), ("unix:/x", "127.0.0.1:0")]
)
def test_the_tunnel_listens_beside_the_host(listen: str, beside: str) -> None:
    assert _beside(listen) == beside


def test_others_are_told_a_name_that_they_can_dial() -> None:
    assert _advertised("10.0.0.5:9", HostSettings()) == "10.0.0.5:9"
    assert _advertised("0.0.0.0:9", HostSettings(node_advertise="big:7603")) == "big:9"
    assert _advertised("0.0.0.0:9", HostSettings(tunnel_advertise="fast")) == "fast:9"
    with pytest.raises(StartupError, match="PUNA_TUNNEL_ADVERTISE"):
        _advertised("0.0.0.0:9", HostSettings())
