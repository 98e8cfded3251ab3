"""Puna's extensions of a dialect mean the same in every dialect."""

from typing import Any

import pytest

from tests.integration.gateway.conftest import Cluster

TALK: Any = [{"role": "user", "content": "hi"}]
EXTENSIONS: dict[str, Any] = {
    "top_k": 7,
    "min_p": 0.25,
    "repeat_penalty": 1.5,
    "grammar": 'root ::= "a"+',
    "truncate": True,
    "shift": True,
    "keep_alive": 60,
    "options": {"seed": 5, "typical_p": 0.5, "logit_bias": {"3": -100}},
}
BODIES = {
    "/v1/chat/completions": {"messages": TALK},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": TALK, "max_tokens": 9},
}


@pytest.mark.parametrize("path", BODIES)
async def test_extensions_reach_the_runner_in_every_dialect(cluster: Cluster, path: str) -> None:
    answer = await cluster.http.post(path, json={"model": "demo", **BODIES[path], **EXTENSIONS})
    assert answer.status_code == 200, answer.text
    (asked,) = cluster.runner.requests
    assert (asked.sampling.top_k, asked.sampling.min_p, asked.sampling.repeat_penalty) == (7, 0.25, 1.5)
    assert (asked.sampling.seed, asked.sampling.typical_p, dict(asked.sampling.logit_bias)) == (5, 0.5, {3: -100})
    assert (asked.truncate, asked.shift, asked.keep_alive_ms) == (True, True, 60_000)
    assert asked.grammar == 'root ::= "a"+'


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_grammar_beside_a_format_is_refused_by_name(cluster: Cluster, path: str) -> None:
    format_: dict[str, Any] = {"response_format": {"type": "json_object"}}
    if path == "/v1/responses":
        format_ = {"text": {"format": {"type": "json_object"}}}
    body = {"model": "demo", **BODIES[path], **format_, "grammar": 'root ::= "a"'}
    answer = await cluster.http.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "grammar"
