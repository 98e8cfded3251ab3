"""`runner rpc` by itself: what it lends, says and refuses, and when it ends."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from common.network import split_host_port
from runner.engine.devices.rpc_hello import rpc_hello
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
CAP_BYTES = 50_000_000


@contextmanager
def lending(*arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """The mode as a process, with its pipes."""
    with subprocess.Popen(
        [sys.executable, "-m", "runner", "rpc", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def address_of(process: "subprocess.Popen[bytes]") -> tuple[str, int]:
    """Return the address that the server listens at."""
    assert process.stdout is not None
    return split_host_port(orjson.loads(process.stdout.readline())["address"])


def test_it_lends_the_named_device_on_loopback_with_the_limit_as_its_size() -> None:
    with lending("--device", "cpu", "--max-bytes", f"cpu={CAP_BYTES}") as process:
        host, port = address_of(process)
        assert host == "127.0.0.1"
        (memory,) = rpc_hello(host, port, timeout_s=5)
        assert (memory.total_bytes, memory.free_bytes) == (CAP_BYTES, CAP_BYTES)
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        core = next(line for line in limits.splitlines() if line.startswith("Max core file size"))
        assert core.split()[4:6] == ["1", "1"]
        assert "NoNewPrivs:\t1" in Path(f"/proc/{process.pid}/status").read_text()


NOBODY = 65534
GREET = """
import encodings.idna, os, socket, sys
from runner.engine.devices.rpc_hello import RpcUnusable, rpc_hello

user, host, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
os.setgroups([])
os.setgid(user)
os.setuid(user)
try:
    print(rpc_hello(host, port, timeout_s=5))
except RpcUnusable:
    print("refused")
held = socket.create_connection((host, port))
print("holds", flush=True)
input()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_of_the_machine_are_not_served_and_keep_no_one_waiting() -> None:
    """The server serves one client at a time, so a connection that is held would be enough to stop it."""
    with lending("--device", "cpu") as process:
        host, port = address_of(process)
        command = [sys.executable, "-c", GREET, str(NOBODY), host, str(port)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert [other.stdout.readline(), other.stdout.readline()] == ["refused\n", "holds\n"]
            for _ in range(3):
                assert rpc_hello(host, port, timeout_s=5)
            other.kill()


def test_it_ends_when_whoever_started_it_is_gone() -> None:
    with lending("--device", "cpu", "--end-with-stdin") as process:
        address_of(process)
        assert process.stdin is not None
        process.stdin.close()
        wait_until(lambda: process.poll() is not None, deadline_s=30, what="it has ended")
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--device", "gpu-7"], 1, "this node has no device 'gpu-7'"),
        (["--device", "cpu", "--max-bytes", "cpu"], 2, "is not ID=BYTES"),
        ([], 2, "--device"),
    ],
)
def test_what_it_cannot_lend_is_said_in_one_line(arguments: list[str], status: int, text: str) -> None:
    with lending(*arguments) as process:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == status
        assert text in errors.decode().splitlines()[-1]
