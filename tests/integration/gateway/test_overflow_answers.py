"""A prompt that is longer than the context, in the words that each dialect's clients read."""

from typing import Any

import pytest

from tests.integration.gateway.conftest import Cluster, StartCluster
from tests.integration.gateway.scripted import MODEL_NAME, ScriptedRunner, ScriptedScheduler, scripted_model

LONG = "word " * 600
MESSAGES = [{"role": "user", "content": LONG}]
HELP = 'set "num_ctx" (up to '


async def error_of(cluster: Cluster, path: str, **body: Any) -> dict[str, Any]:
    """The error object of a request that is refused."""
    answer = await cluster.http.post(path, json={"model": "demo"} | body)
    assert answer.status_code == 400
    return dict(answer.json()["error"])


@pytest.mark.parametrize("stream", [False, True])
async def test_messages_that_overflow_are_counted_in_openais_sentence(cluster: Cluster, stream: bool) -> None:
    error = await error_of(cluster, "/v1/chat/completions", messages=MESSAGES, stream=stream)
    assert (error["code"], error["type"], error["param"]) == (
        "context_length_exceeded",
        "invalid_request_error",
        "messages",
    )
    tokens = int(error["message"].partition("resulted in ")[2].split()[0])
    assert tokens > 600
    assert error["message"] == (
        f"This model's maximum context length is 512 tokens. However, your messages resulted in {tokens} tokens. "
        f"Please reduce the length of the messages. The input exceeds the context window by {tokens - 512} tokens."
    )


async def test_a_plain_prompt_that_overflows_names_both_halves(cluster: Cluster) -> None:
    error = await error_of(cluster, "/v1/completions", prompt=[7] * 600, max_tokens=16)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert error["message"].startswith(
        "This model's maximum context length is 512 tokens, however you requested 616 tokens (600 in your prompt; "
        "16 for the completion). Please reduce your prompt; or completion length."
    )


async def test_items_that_overflow_are_counted_like_messages(cluster: Cluster) -> None:
    said = await error_of(cluster, "/v1/responses", input=LONG)
    assert said["message"].startswith("This model's maximum context length is 512 tokens. However, your messages")
    assert said["code"] == "context_length_exceeded"


async def test_an_input_of_vectors_that_overflows_is_counted(start_cluster: StartCluster) -> None:
    async with start_cluster(
        scheduler=ScriptedScheduler(models={MODEL_NAME: scripted_model(capabilities=["embedding"])})
    ) as cluster:
        error = await error_of(cluster, "/v1/embeddings", input=["short", [7] * 600])
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert error["message"].startswith(
        "This model's maximum context length is 512 tokens, however you requested 600 tokens (600 in your prompt; "
        "0 for the completion)."
    )


async def test_a_context_that_can_grow_is_named(start_cluster: StartCluster) -> None:
    async with start_cluster(runner=ScriptedRunner(context_tokens=64)) as cluster:
        short = await error_of(cluster, "/v1/completions", prompt=[7] * 100)
        long = await error_of(cluster, "/v1/completions", prompt=[7] * 600)
    assert short["message"].endswith(f'{HELP}512) in "options" or in the model\'s parameters.')
    assert HELP not in long["message"]


async def test_the_other_dialects_keep_their_own_words(cluster: Cluster) -> None:
    body: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "max_tokens": 5}
    anthropic = (await cluster.http.post("/v1/messages", json=body)).json()["error"]["message"]
    assert anthropic.startswith("prompt is too long: ")
    assert anthropic.endswith(" tokens > 512 maximum")
    native = await cluster.http.post("/api/chat", json=body | {"truncate": False, "stream": False})
    assert native.json() == {"error": "the input length exceeds the context length"}
