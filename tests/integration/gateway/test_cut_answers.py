"""Answers that a limit ends say so in the words of each dialect."""

from typing import Any

import pytest

from protos import runner_pb2
from tests.integration.gateway.conftest import StartCluster
from tests.integration.gateway.scripted import ScriptedRunner

QUESTION: Any = [{"role": "user", "content": "What is Puna?"}]
BODY: Any = {"model": "demo", "messages": QUESTION, "max_tokens": 99}
REPEATED = "repetition_detected"


def cutting(cut_by: "runner_pb2.CutBy.ValueType") -> ScriptedRunner:
    """A runner whose answers are cut by a limit."""
    return ScriptedRunner(end=runner_pb2.DONE_REASON_LENGTH, cut_by=cut_by)


@pytest.mark.parametrize(
    ("cut_by", "anthropic", "stop_reason"),
    [
        (runner_pb2.CUT_BY_UNSPECIFIED, "max_tokens", None),  # of a runner of an earlier version
        (runner_pb2.CUT_BY_MAX_TOKENS, "max_tokens", None),
        (runner_pb2.CUT_BY_CONTEXT, "model_context_window_exceeded", None),
        (runner_pb2.CUT_BY_REPETITION, "max_tokens", REPEATED),
    ],
)
async def test_a_cut_answer_names_its_limit_in_every_dialect(
    start_cluster: StartCluster, cut_by: "runner_pb2.CutBy.ValueType", anthropic: str, stop_reason: str | None
) -> None:
    async with start_cluster(runner=cutting(cut_by)) as cluster:
        message = (await cluster.http.post("/v1/messages", json=BODY)).json()
        assert message["stop_reason"] == anthropic
        (choice,) = (await cluster.http.post("/v1/chat/completions", json=BODY)).json()["choices"]
        assert (choice["finish_reason"], choice.get("stop_reason")) == ("length", stop_reason)
        text = (await cluster.http.post("/v1/completions", json={**BODY, "prompt": "x"})).json()["choices"][0]
        assert (text["finish_reason"], text.get("stop_reason")) == ("length", stop_reason)
        response = (await cluster.http.post("/v1/responses", json={"model": "demo", "input": "x"})).json()
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        native = (await cluster.http.post("/api/chat", json={**BODY, "stream": False})).json()
        assert (native["done_reason"], native.get("stop_reason")) == ("length", stop_reason)


async def test_a_stream_names_its_limit_in_its_last_chunk(start_cluster: StartCluster) -> None:
    async with start_cluster(runner=cutting(runner_pb2.CUT_BY_REPETITION)) as cluster:
        stream = await cluster.openai.chat.completions.create(model="demo", messages=QUESTION, stream=True)
        *earlier, last = [chunk.choices[0] async for chunk in stream]
        assert (last.finish_reason, last.model_extra) == ("length", {"stop_reason": REPEATED})
        assert all(not choice.model_extra for choice in earlier)
