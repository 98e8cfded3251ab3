"""Answers of a host to Lend, and the division of devices among RPC servers."""

import pytest

from common.errors import PlacementMismatch
from runner.core.host.leases import (
    LendAction,
    Lent,
    LentAt,
    Share,
    Terms,
    decide_lend,
    plan_channels,
    rpc_server_of,
    servers_of,
)


def terms(*device_ids: str, certificate: bytes = b"head") -> Terms:
    shares = tuple(Share(device_id=one, weights_bytes=1, later_bytes=1, max_bytes=0) for one in device_ids)
    return Terms(borrower_certificate=certificate, shares=shares)


def lent(generation: int = 2, *, in_use: bool = False) -> Lent:
    return Lent(generation=generation, terms=terms("gpu-a"), in_use=in_use)


def test_the_first_lend_makes_a_lease() -> None:
    assert decide_lend(None, generation=1, terms=terms("gpu-a")) is LendAction.MAKE


@pytest.mark.parametrize("in_use", [False, True])
def test_the_same_lend_again_is_the_same_lease(in_use: bool) -> None:
    assert decide_lend(lent(in_use=in_use), generation=2, terms=terms("gpu-a")) is LendAction.KEEP


def test_other_terms_replace_a_lease_that_nobody_uses() -> None:
    assert decide_lend(lent(), generation=2, terms=terms("gpu-b")) is LendAction.REPLACE


def test_other_terms_never_take_devices_from_a_runner_of_the_same_generation() -> None:
    with pytest.raises(PlacementMismatch, match="uses what is lent"):
        decide_lend(lent(in_use=True), generation=2, terms=terms("gpu-a", certificate=b"other"))


def test_a_new_generation_replaces_also_what_is_in_use() -> None:
    assert decide_lend(lent(in_use=True), generation=3, terms=terms("gpu-a")) is LendAction.REPLACE


def test_an_older_generation_is_refused() -> None:
    with pytest.raises(PlacementMismatch, match="1 is older"):
        decide_lend(lent(), generation=1, terms=terms("gpu-a"))


def test_one_process_lends_plain_devices_in_the_order_asked() -> None:
    addresses, found = plan_channels(["gpu-b", "gpu-a"])
    assert addresses == [""]
    assert list(found) == ["gpu-b", "gpu-a"]
    assert found == {"gpu-b": LentAt(channel=0, rpc_device=0), "gpu-a": LentAt(channel=0, rpc_device=1)}


def test_devices_of_rpc_servers_are_lent_by_these_servers() -> None:
    addresses, found = plan_channels(["RPC:127.0.0.1:5001/1", "gpu-a", "RPC:127.0.0.1:5002/0", "RPC:127.0.0.1:5001/0"])
    assert addresses == ["", "127.0.0.1:5001", "127.0.0.1:5002"]
    assert found["gpu-a"] == LentAt(channel=0, rpc_device=0)
    assert found["RPC:127.0.0.1:5001/1"] == LentAt(channel=1, rpc_device=1)
    assert found["RPC:127.0.0.1:5001/0"] == LentAt(channel=1, rpc_device=0)
    assert found["RPC:127.0.0.1:5002/0"] == LentAt(channel=2, rpc_device=0)


def test_an_id_tells_whether_a_device_is_an_rpc_servers() -> None:
    assert rpc_server_of("RPC:host:5001/3") == ("host:5001", 3)
    assert rpc_server_of("GPU-5e1f") is None
    assert rpc_server_of("RPC:broken") is None
    assert servers_of(["cpu", "RPC:host:5001/3", "RPC:host:5001/0"]) == {"host:5001"}
