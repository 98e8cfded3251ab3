"""`python -m gateway` as a process: it starts, refuses to start, and stops."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gateway.settings import GatewaySettings
from tests.full_pipe import full_pipe
from tests.ports import free_port
from tests.waiting import wait_until

DEADLINE_S = 60.0
ESTABLISHED, KEEPALIVE_TIMER = "01", "02"  # in the kernel's table of connections


def command_environment(**settings: str) -> dict[str, str]:
    """The environment of a gateway process; nothing of Puna's leaks in from outside."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PUNA_")}
    defaults = {"PUNA_GRPC_HOST": "127.0.0.1:0", "PUNA_SCHEDULER_ADDRESS": "127.0.0.1:1"}
    return clean | defaults | settings


def failed_start(**settings: str) -> str:
    """The standard error of a gateway that must not start."""
    result = subprocess.run(
        [sys.executable, "-m", "gateway"],
        env=command_environment(**settings),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert result.returncode == 1
    return result.stderr


@contextmanager
def taken_port() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("setting", ["PUNA_HOST", "PUNA_GRPC_HOST"])
def test_a_taken_port_is_one_line(setting: str) -> None:
    with taken_port() as port:
        settings = {"PUNA_HOST": "127.0.0.1:0"} | {setting: f"127.0.0.1:{port}"}
        lines = failed_start(**settings).splitlines()
    assert len(lines) == 1
    assert str(port) in lines[0]


@pytest.mark.parametrize("setting", ["PUNA_HOST", "PUNA_GRPC_HOST"])
def test_a_listener_that_others_reach_needs_consent(setting: str) -> None:
    settings = {"PUNA_HOST": "127.0.0.1:0"} | {setting: "0.0.0.0:0"}
    lines = failed_start(**settings).splitlines()
    assert len(lines) == 1
    assert "PUNA_OPEN_GATEWAY=1" in lines[0]


def test_plaintext_and_a_former_name_are_warned_of_at_the_start() -> None:
    with taken_port() as port:
        lines = failed_start(PUNA_HOST=f"127.0.0.1:{port}", PUNA_INSECURE="1").splitlines()
    warned = {event["event"]: event for event in map(json.loads, lines[:-1]) if event["level"] == "warning"}
    assert warned["setting.deprecated"]["use"] == ["PUNA_PLAINTEXT", "PUNA_OPEN_GATEWAY"]
    assert "PUNA_TRUST" in warned["plaintext.allowed"]["text"]


@pytest.mark.parametrize(
    ("name", "value"), [("PUNA_HOST", "nowhere"), ("PUNA_KEEP_ALIVE_MAX", "long"), ("PUNA_MAX_QUEUE", "many")]
)
def test_a_bad_setting_is_named(name: str, value: str) -> None:
    lines = failed_start(**({"PUNA_HOST": "127.0.0.1:0"} | {name: value})).splitlines()
    assert len(lines) == 1
    assert name in lines[0] or value in lines[0]


def test_it_serves_stops_on_a_signal_and_leaves_no_worker_behind() -> None:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway"],
        env=command_environment(PUNA_HOST=f"127.0.0.1:{port}"),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process:
        for line in process.stderr:
            if "gateway.ready" in line:
                break
        workers = children_of(process.pid)
        assert len(workers) == 2
        assert httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=60).json() == {"status": "ok"}
        ready = httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=60)
        assert (ready.status_code, ready.json()) == (503, {"status": "no_routes"})
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    ended = [Path(f"/proc/{worker}") for worker in workers]
    wait_until(lambda: not any(path.exists() for path in ended), deadline_s=20, what="the workers are gone")


def test_it_answers_on_while_its_log_goes_into_a_full_pipe_and_ends_in_order() -> None:
    port = free_port()
    with (
        full_pipe() as pipe,
        subprocess.Popen(
            [sys.executable, "-m", "gateway"], env=command_environment(PUNA_HOST=f"127.0.0.1:{port}"), stderr=pipe
        ) as process,
    ):
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            wait_until(lambda: answers(client), deadline_s=DEADLINE_S, what="the gateway answers")
            assert {client.post("/api/chat", json={}).status_code for _ in range(20)} == {400}
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


def test_the_kernel_probes_idle_connections_of_clients() -> None:
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "gateway"],
        env=command_environment(PUNA_HOST=f"127.0.0.1:{port}"),
        stderr=subprocess.PIPE,
    ) as process:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            wait_until(lambda: answers(client), deadline_s=DEADLINE_S, what="the gateway answers")
            rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            timers = [row[5][:2] for row in rows if row[1] == f"0100007F:{port:04X}" and row[3] == ESTABLISHED]
        process.kill()
    assert timers == [KEEPALIVE_TIMER]


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.ConnectError:
        return False


def children_of(parent: int) -> list[int]:
    """The processes that a process started."""
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def test_the_settings_have_the_documented_defaults() -> None:
    settings = GatewaySettings()
    assert (settings.host, settings.grpc_host) == ("127.0.0.1:11434", "127.0.0.1:11435")
    assert (settings.max_queue, settings.queue_wait_s, settings.stream_commit_s) == (512, 30.0, 15.0)
