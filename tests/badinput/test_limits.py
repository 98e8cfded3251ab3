"""Every limit on requests: at it, one above it, and a hundred times above it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gateway.http.endpoint.exchange import BODY_BYTES_MAX, DEPTH_MAX, NODES_MAX, TEXT_BODY_BYTES_MAX
from tests.badinput.catalogue import ANTHROPIC, OLLAMA, OPENAI, chat, nested, png, said, with_image
from tests.gateway_process import GatewayProcess, gateway_process

GOOD, BAD, LARGE, LARGE_HEAD = 200, 400, 413, 431


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """`make` is a body for a number; bytes, or what becomes JSON. `above`: the status of too much."""

    what: str
    most: int
    make: Callable[[int], Any]
    path: str = OPENAI
    above: int = BAD
    far: int = 100  # times above

    def __str__(self) -> str:
        """As tests name it."""
        return self.what


def schema_with(schema: Any) -> dict[str, Any]:
    wrapped = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return chat(OPENAI, response_format=wrapped)


def tools(count: int) -> dict[str, Any]:
    function = {"parameters": {"type": "object"}}
    return chat(
        OPENAI, tools=[{"type": "function", "function": {**function, "name": f"f{number}"}} for number in range(count)]
    )


def images(count: int) -> dict[str, Any]:
    body = with_image(png(2, 2))(OPENAI)
    return {**body, "messages": [{"role": "user", "content": body["messages"][0]["content"] * count}]}


def filled(size: int, field: str = "unheard_of") -> bytes:
    """A good body of so many bytes, nearly all of them in one field."""
    body = json.dumps(chat(OPENAI, **{field: "~"}), separators=(",", ":"))
    return body.replace("~", "x" * (size - len(body) + 1)).encode()


def deep(depth: int) -> bytes:
    """As `nested_lists`, which Python's own encoder does not write for great depths."""
    body = json.dumps(chat(OPENAI, unheard_of="~"))
    return body.replace('"~"', "[" * depth + "0" + "]" * depth).encode()


def options(**values: Any) -> dict[str, Any]:
    return chat(OPENAI, options=values)


def embed(count: int) -> dict[str, Any]:
    return {"model": "embedder", "input": ["x"] * count}


def documents(count: int) -> dict[str, Any]:
    return {"model": "ranker", "query": "x", "documents": ["y"] * count}


LIMITS = [
    Limit(what="body without images", most=TEXT_BODY_BYTES_MAX, make=filled, above=LARGE, far=4),
    Limit(what="body", most=BODY_BYTES_MAX, make=lambda size: filled(size, "images"), above=LARGE, far=2),
    Limit(what="depth", most=DEPTH_MAX - 1, make=deep),
    Limit(what="digits", most=19, make=lambda digits: b'{"seed":1' + b"0" * (digits - 1) + b"}"),
    Limit(what="messages", most=2048, make=lambda count: said("x", times=count)(OPENAI)),
    Limit(
        what="messages of Anthropic", most=2048, make=lambda count: said("x", times=count)(ANTHROPIC), path=ANTHROPIC
    ),
    Limit(what="messages of Ollama", most=2048, make=lambda count: said("x", times=count)(OLLAMA), path=OLLAMA),
    Limit(what="parts", most=64, make=lambda count: said([{"type": "text", "text": "x"}] * count)(OPENAI)),
    Limit(what="tools", most=1024, make=tools),
    Limit(what="stop strings", most=16, make=lambda count: options(stop=[f"a{number}" for number in range(count)])),
    Limit(what="bytes of a stop string", most=256, make=lambda size: options(stop=["a" * size])),
    Limit(what="n", most=8, make=lambda count: chat(OPENAI, n=count)),
    Limit(what="top_logprobs", most=20, make=lambda count: chat(OPENAI, logprobs=True, top_logprobs=count)),
    Limit(
        what="logit_bias", most=1024, make=lambda count: options(logit_bias={str(token): 1 for token in range(count)})
    ),
    Limit(what="depth of a schema", most=31, make=lambda depth: schema_with(nested(depth)), far=1),
    Limit(what="values of an enum", most=10_000, make=lambda count: schema_with({"enum": [0] * count}), far=10),
    Limit(what="pattern", most=512, make=lambda size: schema_with({"type": "string", "pattern": "a" * size})),
    Limit(
        what="nesting of a pattern", most=16,
        make=lambda depth: schema_with({"type": "string", "pattern": "(" * depth + "a" + ")" * depth}),
    ),
    Limit(what="grammar", most=64 * 1024, make=lambda size: chat(OPENAI, grammar=f'root ::= "{"a" * (size - 11)}"')),
    Limit(
        what="nesting of a grammar", most=100,
        make=lambda depth: chat(OPENAI, grammar=f'root ::= {"(" * depth}"a"{")" * depth}'),
    ),
    Limit(what="repetitions", most=2000, make=lambda count: chat(OPENAI, grammar=f'root ::= "a"{{{count}}}')),
    Limit(what="images", most=8, make=images),
    Limit(what="pixels", most=2**25, make=lambda pixels: with_image(png(8192, -(-pixels // 8192)))(OPENAI)),
    Limit(what="inputs", most=2048, make=embed, path="/v1/embeddings", far=50),
    Limit(what="inputs of Ollama", most=2048, make=embed, path="/api/embed", far=50),
    Limit(what="documents", most=2048, make=documents, path="/v1/rerank", far=50),
    Limit(what="label", most=512, make=lambda size: chat(OPENAI, user="u" * size)),
]  # fmt: skip


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway_process(tmp_path_factory.mktemp("limits")) as running:
        yield running


def status_of(gateway: GatewayProcess, limit: Limit, amount: int) -> tuple[int, str]:
    body = limit.make(amount)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    try:
        answer = httpx.post(gateway.url + limit.path, content=content, headers=headers, timeout=60)
    except httpx.WriteError:  # refused while it was still being sent
        return LARGE, ""
    return answer.status_code, answer.text


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_a_limit_lets_through_what_it_says_and_nothing_more(gateway: GatewayProcess, limit: Limit) -> None:
    status, text = status_of(gateway, limit, limit.most)
    if limit.what == "digits":  # nothing else of it is good; what is said is not about the limit
        assert status == BAD
        assert "digits" not in text
    else:
        assert status == GOOD, text[:300]
    for amount in (limit.most + 1, limit.most * limit.far + 1):
        status, text = status_of(gateway, limit, amount)
        assert status == limit.above, (amount, text[:300])
        assert "internal" not in text
    assert gateway.is_alive()


@pytest.mark.parametrize(
    ("what", "most", "header"),
    [
        ("lines of headers", 60, lambda count: {f"x-{number}": "a" for number in range(count)}),
        ("bytes of headers", 15_000, lambda size: {"x-long": "a" * size}),
    ],
)
def test_heads_have_limits(
    gateway: GatewayProcess, what: str, most: int, header: Callable[[int], dict[str, str]]
) -> None:
    """httpx adds lines of its own, so these stay a little below the limits, and go well above."""
    assert httpx.get(gateway.url + "/healthz", headers=header(most - 4), timeout=60).status_code == GOOD, what
    for amount in (most * 2, most * 100):
        try:
            assert httpx.get(gateway.url + "/healthz", headers=header(amount), timeout=60).status_code == LARGE_HEAD
        except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
            assert amount == most * 100, "refused while it was still being sent"
    assert gateway.is_alive()


def test_values_of_a_body_have_a_limit(gateway: GatewayProcess) -> None:
    def ask(values: int) -> httpx.Response:
        # Beside them: the body, `model`, `messages`, one message and its two fields, `unheard_of`.
        body = chat(OPENAI, unheard_of=[0] * (values - 7))
        return httpx.post(gateway.url + OPENAI, json=body, timeout=60)

    assert ask(NODES_MAX).status_code == GOOD
    for values in (NODES_MAX + 1, NODES_MAX * 20):
        answer = ask(values)
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            BAD,
            f"request body has more than {NODES_MAX} values",
        )
