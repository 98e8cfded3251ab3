"""Every row of the catalogue of bad input against a gateway process: exact status and body, and nobody else notices."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.badinput.catalogue import ANTHROPIC, GOOD, HELLO, OLLAMA, OPENAI, TABLE, Row
from tests.gateway_process import GatewayProcess, gateway_process

RSS_MORE_BYTES_MAX = 50 * 2**20
_ANTHROPIC_TYPES = {404: "not_found_error", 413: "request_too_large"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway_process(tmp_path_factory.mktemp("badinput")) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=60) as http:
        yield http


def body_of(row: Row) -> bytes:
    return row.send if isinstance(row.send, bytes) else json.dumps(row.send).encode()


def expected(row: Row, request_id: str) -> Any:
    """The error in its dialect, whole."""
    if row.path == OLLAMA:
        return {"error": row.text}
    if row.path == ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(row.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": row.text}, "request_id": request_id}
    return {"error": {"message": row.text, "type": "invalid_request_error", "param": row.param, "code": row.code}}


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_row(row: Row, client: httpx.Client, gateway: GatewayProcess) -> None:
    answer = client.post(row.path, content=body_of(row), headers={"content-type": "application/json"})
    assert answer.status_code == row.status, answer.text[:500]
    if row.status == GOOD:
        assert answer.json().get("error") is None
    else:
        assert row.text, "every refusal has its exact body in the table"
        assert answer.json() == expected(row, answer.headers["x-request-id"])
    assert gateway.is_alive()


def test_the_whole_table_leaves_the_process_as_it_was(gateway: GatewayProcess, client: httpx.Client) -> None:
    # A second round over a warm process: what a first round allocates for good is not a leak.
    def all_rows() -> None:
        for row in TABLE:
            client.post(row.path, content=body_of(row), headers={"content-type": "application/json"})

    before = gateway.rss_bytes()
    all_rows()
    assert gateway.rss_bytes() - before <= RSS_MORE_BYTES_MAX
    for path in (OPENAI, ANTHROPIC, OLLAMA):
        body = {"model": "demo", "messages": HELLO, "max_tokens": 9, "stream": False}
        assert client.post(path, json=body).status_code == GOOD
    assert "Traceback" not in gateway.log.read_text()
    assert "http.bug" not in gateway.log.read_text()


def test_every_number_has_a_row_here_or_beside() -> None:
    """Numbers that no JSON body can show are in the files beside this one, or where their routes are tested."""
    here = {row.number for row in TABLE}
    elsewhere = {
        "IN12": "tests/e2e/test_bad_input.py",
        "IN15": "test_raw_requests.py",
        "IN21": "tests/e2e/test_bad_input.py",
        "IN24": "tests/e2e/test_bad_input.py",
        "IN25": "test_raw_requests.py",
        "IN26": "test_raw_requests.py",
        "IN27": "test_raw_requests.py",
        "IN28": "test_raw_requests.py",
        "IN29": "test_raw_requests.py",
        "IN30": "test_raw_requests.py",
        "IN31": "test_raw_requests.py",
        "IN32": "tests/authz",
        "IN34": "test_grpc_requests.py",
        "IN36": "tests/e2e/test_bad_input.py",
        "IN37": "tests/authz",
        "IN38": "test_raw_requests.py",
    }
    assert here | elsewhere.keys() >= {f"IN{number}" for number in range(1, 39)}
