"""Rows of the catalogue through the official clients: which exception each raises. Their users catch these classes."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import ollama
import openai
import pytest

from tests.badinput.catalogue import ANTHROPIC, GOOD, OLLAMA, OPENAI, TABLE, Row
from tests.gateway_process import GatewayProcess, gateway_process

OPENAI_CLASSES: dict[int, type[Exception]] = {
    400: openai.BadRequestError,
    404: openai.NotFoundError,
    413: openai.APIStatusError,
}
ANTHROPIC_CLASSES: dict[int, type[Exception]] = {
    400: anthropic.BadRequestError,
    404: anthropic.NotFoundError,
    413: anthropic.RequestTooLargeError,
}
# Bodies that are objects with what each client asks for; large ones would show nothing more about classes.
SENT_BYTES_MAX = 100_000
SENT = [
    row
    for row in TABLE
    if isinstance(row.send, dict)
    and {"model", "messages"} <= row.send.keys()
    and len(json.dumps(row.send)) <= SENT_BYTES_MAX
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway_process(tmp_path_factory.mktemp("sdk")) as running:
        yield running


@pytest.fixture(scope="module")
def clients(gateway: GatewayProcess) -> Iterator[tuple[openai.OpenAI, anthropic.Anthropic, ollama.Client]]:
    with (
        openai.OpenAI(base_url=gateway.url + "/v1", api_key="any", max_retries=0) as first,
        anthropic.Anthropic(base_url=gateway.url, api_key="any", max_retries=0) as second,
        ollama.Client(host=gateway.url) as third,
    ):
        yield first, second, third


@pytest.mark.parametrize("row", SENT, ids=str)
def test_the_official_client_raises_its_own_class(
    row: Row, clients: tuple[openai.OpenAI, anthropic.Anthropic, ollama.Client]
) -> None:
    of_openai, of_anthropic, of_ollama = clients
    body: dict[str, Any] = dict(row.send)

    def ask() -> None:
        if row.path == OPENAI:
            of_openai.post("/chat/completions", body=body, cast_to=object)
        elif row.path == ANTHROPIC:
            of_anthropic.post("/v1/messages", body=body, cast_to=object)
        else:
            # Its methods check their arguments themselves; what they call is what sends and raises.
            of_ollama._request_raw("POST", "/api/chat", json=body)  # type: ignore[no-untyped-call]

    if row.status == GOOD:
        ask()
        return
    expected: type[Exception] = {
        OPENAI: OPENAI_CLASSES.get(row.status, openai.APIStatusError),
        ANTHROPIC: ANTHROPIC_CLASSES.get(row.status, anthropic.APIStatusError),
        OLLAMA: ollama.ResponseError,
    }[row.path]
    with pytest.raises(expected) as caught:
        ask()
    assert type(caught.value) is expected
    assert getattr(caught.value, "status_code", None) == row.status
    if row.text:
        assert row.text in str(caught.value).replace("\\\\", "\\")  # some show the body as Python writes it
