"""A gateway that may have few files open: clients beyond that are refused with a status, and it heals."""

import resource
import socket
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import httpx

from tests.gateway_process import GatewayProcess, gateway_process
from tests.waiting import wait_until

OPEN_FILES_MAX = 256
CLIENTS = 400
ADDRESSES = 200  # of clients: each may have only so many connections
REQUEST = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "stream": False}


def open_files(gateway: GatewayProcess) -> int:
    return sum(1 for _ in Path(f"/proc/{gateway.process.pid}/fd").iterdir())


def ask(peer: socket.socket) -> str:
    """Ask on an open connection; the status, or the way in which there was none."""
    try:
        peer.sendall(REQUEST)
        head = peer.recv(4096)
    except OSError as error:
        return type(error).__name__
    if not head:
        return "closed"
    status = head.split(b" ")[1].decode()
    return status if status == "200" or b"\r\nretry-after: " in head else f"{status} without retry-after"


def is_served(gateway: GatewayProcess) -> bool:
    try:
        return httpx.post(f"{gateway.url}/api/chat", json=CHAT, timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def test_a_gateway_with_few_descriptors_refuses_with_a_status_and_heals(tmp_path: Path) -> None:
    prefix = ("prlimit", f"--nofile={OPEN_FILES_MAX}:{OPEN_FILES_MAX}")
    with gateway_process(tmp_path, prefix=prefix) as gateway:
        assert resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE) == (OPEN_FILES_MAX, OPEN_FILES_MAX)
        assert is_served(gateway)
        before = open_files(gateway)
        with ExitStack() as stack:
            kinds, admitted = Counter[str](), list[socket.socket]()
            for number in range(CLIENTS):
                source = (f"127.0.1.{number % ADDRESSES + 1}", 0)
                peer = socket.create_connection((gateway.host, gateway.port), timeout=60, source_address=source)
                kinds[kind := ask(peer)] += 1
                if kind == "200":
                    admitted.append(stack.enter_context(peer))
                else:  # as clients do
                    peer.close()
            assert kinds.keys() == {"200", "503"}, kinds
            assert [ask(peer) for peer in admitted] == ["200"] * len(admitted)
            assert len(admitted) < open_files(gateway) < OPEN_FILES_MAX
        wait_until(lambda: is_served(gateway), deadline_s=20, what="it serves again")
        wait_until(lambda: open_files(gateway) <= before + 1, deadline_s=20, what="connections are closed")
        log = gateway.log.read_text()
        assert gateway.is_alive()
    assert ".bug" not in log, log[log.index(".bug") - 300 :][:3000]
