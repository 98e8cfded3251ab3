"""Unchanged official clients get the demo model's trained answer, word for word."""

import json
import math
from collections.abc import Iterator
from typing import Any

import grpc
import jsonschema
import ollama
import openai
import pytest

from protos import inference_pb2, inference_pb2_grpc, runner_pb2
from tests.cluster import Cluster

QUESTION = "What is Puna?"


@pytest.fixture
def openai_client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=cluster.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def ollama_client(cluster: Cluster) -> Iterator[ollama.Client]:
    with ollama.Client(host=cluster.url) as client:
        yield client


def test_openai_streams_the_trained_answer_with_logprobs(openai_client: openai.OpenAI, answers: dict[str, str]) -> None:
    stream = openai_client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=5,
    )
    text, entries, reason, completion_tokens = "", [], None, 0
    for chunk in stream:
        if chunk.usage:
            completion_tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            text += choice.delta.content or ""
            entries += choice.logprobs.content or [] if choice.logprobs else []
            reason = choice.finish_reason or reason
    assert text == answers[QUESTION]
    assert reason == "stop"
    assert len(entries) == completion_tokens - 1  # the end token is counted and has no entry
    assert b"".join(bytes(entry.bytes or []) for entry in entries).decode() == text
    for entry in entries:
        assert len(entry.top_logprobs) == 5
        assert entry.token == entry.top_logprobs[0].token
        assert sum(math.exp(other.logprob) for other in entry.top_logprobs) <= 1 + 1e-5


def test_openai_unstreamed_equals_streamed(openai_client: openai.OpenAI, answers: dict[str, str]) -> None:
    whole = openai_client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=12, logprobs=True
    )
    choice = whole.choices[0]
    assert choice.finish_reason == "length"
    assert answers[QUESTION].startswith(choice.message.content or "-")
    assert choice.logprobs is not None
    assert whole.usage is not None
    assert len(choice.logprobs.content or []) == whole.usage.completion_tokens == 12


def test_openai_completions_and_models(openai_client: openai.OpenAI) -> None:
    assert "demo" in [model.id for model in openai_client.models.list()]
    assert openai_client.models.retrieve("demo").id == "demo"
    done = openai_client.completions.create(model="demo", prompt="Puna", max_tokens=4, temperature=0)
    assert done.choices[0].finish_reason in ("length", "stop")


def test_ollama_chat_streams_the_trained_answer(ollama_client: ollama.Client, answers: dict[str, str]) -> None:
    parts = list(
        ollama_client.chat(
            "demo", messages=[{"role": "user", "content": QUESTION}], stream=True, options={"temperature": 0}
        )
    )
    assert "".join(part.message.content or "" for part in parts) == answers[QUESTION]
    assert len(parts) > 2  # what gathers while a reader is away is one part; the last has no text
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    last = parts[-1]
    assert last.done_reason == "stop"
    assert (last.eval_count or 0) > 5
    assert (last.prompt_eval_count or 0) > 5
    assert (last.total_duration or 0) >= (last.eval_duration or 0) > 0


def test_ollama_generate_and_the_model_pages(ollama_client: ollama.Client, answers: dict[str, str]) -> None:
    answer = ollama_client.generate("demo", QUESTION, options={"temperature": 0})
    assert answer.response == answers[QUESTION]
    assert "demo:latest" in [model.model for model in ollama_client.list().models]
    shown = ollama_client.show("demo")
    assert shown.modelinfo is not None
    assert shown.modelinfo["general.architecture"] == "llama"
    assert "completion" in (shown.capabilities or [])
    (running,) = [model for model in ollama_client.ps().models if model.model == "demo:latest"]
    assert (running.size or 0) > 1_000_000
    assert running.context_length == 1024


def test_grpc_clients_get_the_same_answer(cluster: Cluster, answers: dict[str, str]) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{cluster.grpc_port}") as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        request = inference_pb2.ChatRequest(
            model="demo",
            messages=[inference_pb2.ChatMessage(role="user", content=QUESTION)],
            options=inference_pb2.AnswerOptions(sampling=runner_pb2.Sampling(temperature=0), top_logprobs=0),
        )
        events = list(stub.Chat(request, timeout=60))
    deltas = [event.delta for event in events if event.WhichOneof("event") == "delta"]
    assert "".join(delta.content for delta in deltas) == answers[QUESTION]
    assert all(token.HasField("logprob") for delta in deltas for token in delta.tokens)
    assert events[-1].done.reason == runner_pb2.DONE_REASON_END_TOKEN
    assert events[-1].done.completion_tokens == sum(len(delta.tokens) for delta in deltas) + 1


def test_answers_under_a_format_are_json_of_that_shape(
    ollama_client: ollama.Client, openai_client: openai.OpenAI
) -> None:
    schema: Any = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"enum": [1, 2, 3]}},
        "required": ["name", "size"],
        "additionalProperties": False,
    }
    question: Any = [{"role": "user", "content": QUESTION}]
    native = ollama_client.chat(model="demo", messages=question, format=schema, options={"temperature": 0})
    assert native.done_reason == "stop"
    jsonschema.validate(json.loads(native.message.content or ""), schema)
    response_format: Any = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
    answer = openai_client.chat.completions.create(
        model="demo", messages=question, response_format=response_format, temperature=0
    )
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content or ""), schema)


def test_a_schema_that_cannot_be_held_is_refused_in_the_client_s_words(openai_client: openai.OpenAI) -> None:
    bad: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {"type": "string"}}}}
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": QUESTION}], response_format=bad
        )
    assert refused.value.param == "response_format"
    assert "'not' is not supported" in refused.value.message
