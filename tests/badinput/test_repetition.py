"""Every bad input of the catalogue again and again: the same answer each time, and nothing of it stays behind."""

import contextlib
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.badinput.catalogue import ANTHROPIC, GOOD, HELLO, OLLAMA, OPENAI, TABLE, Row
from tests.gateway_process import GatewayProcess, gateway_process
from tests.waiting import wait_until

# What a process allocates once and for good shows in the first times, what leaks in all of them.
FIRST_TIMES, TIMES = 15, 85
# A row of megabytes shows in a few times that it is refused each time.
SMALL_BYTES_MAX, TIMES_OF_LARGE = 20_000, 3
RSS_MORE_BYTES_MAX = 20 * 2**20
# Idle connections of other tests' clients, and one worker that is being replaced.
DESCRIPTORS_MORE_MAX = 4
LATE_S = 0.1
LATE_SHARE_MAX = 0.01
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
BAD = [row for row in TABLE if row.status != GOOD]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway_process(tmp_path_factory.mktemp("again")) as running:
        yield running


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Resources of a process, and the delays of its event loop."""

    rss_bytes: int
    descriptors: int
    threads: int
    running: float
    turns: float
    late: float
    starved_s: float  # ready to run, and no processor was free for it


def held(gateway: GatewayProcess) -> Held:
    process = Path("/proc") / str(gateway.process.pid)
    page = httpx.get(gateway.url + "/metrics", timeout=60).text
    lag = "puna_event_loop_lag_seconds"
    turns = sample(page, lag + "_count")
    return Held(
        rss_bytes=gateway.rss_bytes(),
        descriptors=len(list((process / "fd").iterdir())),
        threads=len(list((process / "task").iterdir())),
        running=sum(float(line.split()[-1]) for line in lines_of(page, "puna_gateway_running_requests{")),
        turns=turns,
        late=turns - sample(page, f'{lag}_bucket{{le="{LATE_S}"}}'),
        starved_s=int((process / "schedstat").read_text().split()[1]) / 1e9,
    )


def lines_of(page: str, name: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(name)]


def sample(page: str, name: str) -> float:
    (line,) = lines_of(page, name + " ")
    return float(line.split()[-1])


def statuses_of(gateway: GatewayProcess, row: Row, times: int) -> Counter[int]:
    """Send a row so many times in one go, and read the answers until the last one closes the connection."""
    body = row.send if isinstance(row.send, bytes) else json.dumps(row.send).encode()
    head = f"POST {row.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    one = head.encode() + b"Content-Length: %d\r\n" % len(body)
    requests = (one + b"\r\n" + body) * (times - 1) + one + b"Connection: close\r\n\r\n" + body
    answer = b""
    with socket.create_connection((gateway.host, gateway.port), timeout=60) as peer:
        peer.sendall(requests)
        with contextlib.suppress(ConnectionResetError):  # refused while it was still being sent
            while part := peer.recv(65536):
                answer += part
    return Counter(int(status) for status in _STATUS.findall(answer))


def test_a_hundred_times_of_each_gets_a_hundred_answers_and_leaves_nothing(gateway: GatewayProcess) -> None:
    small = [row for row in BAD if len(body_of(row)) <= SMALL_BYTES_MAX]
    assert len(small) > 150
    for row in BAD:
        if row in small:
            assert statuses_of(gateway, row, FIRST_TIMES) == {row.status: FIRST_TIMES}, row
        else:
            for _ in range(TIMES_OF_LARGE):
                assert statuses_of(gateway, row, 1) == {row.status: 1}, row
    before = held(gateway)
    for row in small:
        assert statuses_of(gateway, row, TIMES) == {row.status: TIMES}, row
    after = held(gateway)
    assert after.rss_bytes - before.rss_bytes <= RSS_MORE_BYTES_MAX
    assert after.threads <= before.threads + 1
    assert after.running == 0
    wait_until(
        lambda: held(gateway).descriptors <= before.descriptors + DESCRIPTORS_MORE_MAX,
        deadline_s=20,
        what="connections and pipes are closed",
    )
    # Turns that came late for want of a processor say nothing: each of them waited for at least so long.
    late = after.late - before.late - (after.starved_s - before.starved_s) / LATE_S
    assert late <= 1 + LATE_SHARE_MAX * (after.turns - before.turns)


def body_of(row: Row) -> bytes:
    return row.send if isinstance(row.send, bytes) else json.dumps(row.send).encode()


def test_good_requests_are_answered_afterwards(gateway: GatewayProcess) -> None:
    """Each has a slot of the runner: none was kept."""
    for path in (OPENAI, ANTHROPIC, OLLAMA) * 10:
        body = {"model": "demo", "messages": HELLO, "max_tokens": 9, "stream": False}
        assert httpx.post(gateway.url + path, json=body, timeout=60).status_code == GOOD
    assert gateway.is_alive()
    assert "http.bug" not in gateway.log.read_text()
