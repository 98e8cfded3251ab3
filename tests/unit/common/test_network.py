"""Addresses are read as they are written."""

import socket
import sys

import pytest

from common.network import connected_user, is_private_listener, notice_silence, split_host_port


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


TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1389 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:C350 0100007F:1389 01 00000000:00000000 00:00000000 00000000  1000        0 2 1 0 20 4 30 10 -1
   2: 0100007F:1389 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 3 1 0 20 4 30 10 -1
   3: 0100007F:C351 0100007F:1389 05 00000000:00000000 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1
"""


@pytest.mark.skipif(sys.byteorder != "little", reason="the kernel writes addresses in the order of the machine")
@pytest.mark.parametrize(("port", "user"), [(50000, 1000), (50001, None), (50002, None)])
def test_the_user_of_a_connection_is_known_while_both_ends_are_open(port: int, user: int | None) -> None:
    """One that its user has closed is shown as one of root."""
    assert connected_user(TABLE, ("127.0.0.1", port), ("127.0.0.1", 5001)) == user


def test_accepted_connections_notice_the_silence_that_their_listener_notices() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        notice_silence(listener, idle_s=5, interval_s=2, unacknowledged_s=15)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            assert [accepted.getsockopt(socket.IPPROTO_TCP, one) for one in options] == [5, 2, 3, 15_000]
