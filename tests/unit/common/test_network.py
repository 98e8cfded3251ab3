"""Addresses are read as they are written."""

import pytest

from common.network import is_private_listener, split_host_port


@pytest.mark.parametrize(
    ("address", "expected"), [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), (":7601", ("", 7601))]
)
def test_host_and_port_are_split(address: str, expected: tuple[str, int]) -> None:
    assert split_host_port(address) == expected


@pytest.mark.parametrize("address", ["localhost", "localhost:", "localhost:http", "localhost:65536", ""])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_host_port(address)


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("unix:/run/x.sock", True),
        ("127.0.0.1:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("10.0.0.1:1", False),
        ("example.org:1", False),
    ],
)
def test_only_sockets_and_loopback_are_private(address: str, private: bool) -> None:
    assert is_private_listener(address) is private
