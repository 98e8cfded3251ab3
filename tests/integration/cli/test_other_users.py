"""Sockets of a running cluster against another user of the machine: each one that the kernel lists is tried."""

import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.cluster import Cluster, start_cluster

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

NOBODY = 65534
CONNECT = """
import os, socket, sys

user, kind, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if user:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
try:
    socket.socket(socket.AF_UNIX, kind).connect(address)
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""
LISTENS = 0x10000  # of the flags in /proc/net/unix
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F")  # as in /proc/net/tcp and tcp6
CHAT = {"model": "demo", "stream": False, "messages": [{"role": "user", "content": "Hi"}]}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Listener:
    """A Unix socket that a process listens on. A name that begins with @ is in no file system."""

    path: str
    kind: int  # as socket.SOCK_STREAM


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One below folders that every user may pass."""
    with tempfile.TemporaryDirectory(prefix="puna-open-") as directory:
        Path(directory).chmod(0o755)
        home = Path(directory, "home")
        home.mkdir(mode=0o755)
        home.chmod(0o755)  # as an operator may have made it
        running = start_cluster(home)
        running.post("/api/chat", CHAT).raise_for_status()
        yield running
        running.stop()


def descriptors(cluster: Cluster) -> set[str]:
    """Numbers of the sockets that processes of the cluster hold."""
    found = set()
    for pid in cluster.members():
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found |= set(re.findall(r"socket:\[(\d+)\]", str(entry.readlink())))
            except FileNotFoundError:
                continue
    return found


def unix_listeners(cluster: Cluster) -> set[Listener]:
    own, found = descriptors(cluster), set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, kind, _, inode, *path = line.split()
        if inode in own and int(flags, 16) & LISTENS:
            found.add(Listener(path=path[0], kind=int(kind, 16)))
    return found


def connected(listener: Listener, user: int) -> str:
    words = [str(user), str(listener.kind), listener.path]
    done = subprocess.run([sys.executable, "-c", CONNECT, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextmanager
def modes(paths: set[Path], mode: int) -> Iterator[None]:
    before = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    for path in paths:
        path.chmod(mode)
    try:
        yield
    finally:
        for path in paths:
            path.chmod(before[path])


def test_each_socket_refuses_another_user_by_its_folder_and_by_its_own_mode(cluster: Cluster) -> None:
    listeners = unix_listeners(cluster)
    names = [Path(listener.path).name for listener in listeners]
    assert sorted(names) == ["discovery.sock", "host.sock", "kv", "redis.sock", "scheduler.sock", "sock"]
    files = {Path(listener.path) for listener in listeners}
    folders = {parent for path in files for parent in path.parents if parent.is_relative_to(cluster.home)}
    outcomes = {}
    for listener in sorted(listeners):
        assert connected(listener, 0) == "connected"
        outcomes[f"{listener.path} as it is"] = connected(listener, NOBODY)
        with modes(folders - {cluster.home}, 0o755):
            outcomes[f"{listener.path} in open folders"] = connected(listener, NOBODY)
        with modes({Path(listener.path)}, 0o777):
            outcomes[f"{listener.path} in its folder"] = connected(listener, NOBODY)
            with modes(folders - {cluster.home}, 0o755):  # otherwise this test could not fail
                assert connected(listener, NOBODY) == "connected"
    assert outcomes == dict.fromkeys(outcomes, "PermissionError")


def test_another_user_reaches_no_other_port_than_those_of_clients_and_metrics(cluster: Cluster) -> None:
    own, found = descriptors(cluster), set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in own:
                address, _, port = words[1].partition(":")
                assert address in LOOPBACK, f"{words[1]} is no address of loopback"
                found.add(int(port, 16))
    pages = {port for port in found - {cluster.port, cluster.grpc_port} if is_metrics_page(port)}
    assert found == {cluster.port, cluster.grpc_port, *pages}


def is_metrics_page(port: int) -> bool:
    return "puna_" in httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60, trust_env=False).text
