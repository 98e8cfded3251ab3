"""puna.v1.Inference: the same inference, typed."""

import asyncio
from collections.abc import AsyncIterator
from itertools import groupby
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from protos import inference_pb2, inference_pb2_grpc, runner_pb2, scheduler_pb2
from tests.integration.gateway.conftest import Cluster, StartCluster
from tests.integration.gateway.scripted import ANSWER, ScriptedRunner

USER = inference_pb2.ChatMessage(role="user", content="What is Puna?")
TEXT = "".join(ANSWER)


@pytest.fixture
async def channel(cluster: Cluster) -> AsyncIterator[aio.Channel]:
    async with aio.insecure_channel(cluster.gateway.grpc_address) as one:
        yield one


@pytest.fixture
def stub(channel: aio.Channel) -> "inference_pb2_grpc.InferenceAsyncStub":
    return inference_pb2_grpc.InferenceStub(channel)


async def test_chat_streams_events_and_ends_in_done(stub: "inference_pb2_grpc.InferenceAsyncStub") -> None:
    options = inference_pb2.AnswerOptions(top_logprobs=1, sampling=runner_pb2.Sampling(seed=5))
    events = [e async for e in stub.Chat(inference_pb2.ChatRequest(model="demo", messages=[USER], options=options))]
    kinds = [event.WhichOneof("event") for event in events]
    assert [kind for kind, _ in groupby(kinds) if kind not in ("queued", "loading")] == ["prompt", "delta", "done"]
    deltas = [event.delta for event in events if event.WhichOneof("event") == "delta"]
    assert "".join(delta.content for delta in deltas) == TEXT
    assert [token.logprob for delta in deltas for token in delta.tokens] == [-0.5, -1.0, -1.5, -2.0]
    done = events[-1].done
    assert (done.reason, done.seed, done.completion_tokens) == (runner_pb2.DONE_REASON_END_TOKEN, 5, len(ANSWER) + 1)
    assert done.placement.placement_id


async def test_every_call_gets_the_id_of_the_logs_and_cannot_choose_it(
    cluster: Cluster, stub: "inference_pb2_grpc.InferenceAsyncStub"
) -> None:
    theirs = (("x-request-id", "req_of_somebody_else"),)
    calls: list[Any] = [
        stub.Chat(inference_pb2.ChatRequest(model="demo", messages=[USER]), metadata=theirs),
        stub.Chat(inference_pb2.ChatRequest(model="unknown", messages=[USER])),
        stub.ShowModel(inference_pb2.ShowModelRequest(model="unknown")),
    ]
    ids = [dict(await call.initial_metadata())["x-request-id"] for call in calls]
    assert [await call.code() for call in calls[1:]] == [grpc.StatusCode.NOT_FOUND] * 2
    assert [event async for event in calls[0]]
    assert cluster.runner.request_ids == ids[:1]
    assert len({*ids, theirs[0][1]}) == len(ids) + 1


async def test_generate_raw_and_rendered(cluster: Cluster, stub: "inference_pb2_grpc.InferenceAsyncStub") -> None:
    for raw in (True, False):
        async for _ in stub.Generate(inference_pb2.GenerateTextRequest(model="demo", prompt="x<|im_end|>", raw=raw)):
            pass
    raw_request, rendered = cluster.runner.requests
    assert [segment.text for segment in raw_request.prompt] == ["x<|im_end|>"]
    assert "<|im_end|>" in [segment.literal for segment in rendered.prompt]
    assert raw_request.shift
    assert raw_request.truncate


async def test_constraints_and_samplers_reach_the_runner(
    cluster: Cluster, stub: "inference_pb2_grpc.InferenceAsyncStub"
) -> None:
    sampling = runner_pb2.Sampling(dry_multiplier=1.5, dry_sequence_breakers=["."], xtc_probability=0.25)
    constraints: list[dict[str, Any]] = [{"json_schema": '{"type": "null"}'}, {"grammar": 'root ::= "x"'}, {}]
    for constraint in constraints:
        options = inference_pb2.AnswerOptions(sampling=sampling, **constraint)
        async for _ in stub.Generate(inference_pb2.GenerateTextRequest(model="demo", prompt="x", options=options)):
            pass
        asked = cluster.runner.requests[-1]
        assert asked.WhichOneof("constraint") == next(iter(constraint), None)
        assert {"json_schema": asked.json_schema, "grammar": asked.grammar}.items() >= constraint.items()
        assert (asked.sampling.dry_multiplier, asked.sampling.xtc_probability) == (1.5, 0.25)
        assert list(asked.sampling.dry_sequence_breakers) == ["."]


async def test_tokens_there_and_back(stub: "inference_pb2_grpc.InferenceAsyncStub") -> None:
    by_text = await stub.Tokenize(inference_pb2.TokenizeTextRequest(model="demo", text="one two three"))
    assert len(by_text.ids) == 3
    messages = inference_pb2.ChatMessages(messages=[USER])
    rendered = await stub.Tokenize(inference_pb2.TokenizeTextRequest(model="demo", messages=messages))
    assert len(rendered.ids) > 3
    back = await stub.Detokenize(inference_pb2.DetokenizeIdsRequest(model="demo", ids=[1, 2]))
    assert back.text == "1 2"


async def test_models_are_listed_shown_loaded_and_unloaded(
    cluster: Cluster, stub: "inference_pb2_grpc.InferenceAsyncStub"
) -> None:
    listed = await stub.ListModels(inference_pb2.ListModelsRequest())
    assert [route.model.name for route in listed.models] == ["demo:latest"]
    shown = await stub.ShowModel(inference_pb2.ShowModelRequest(model="demo"))
    assert shown.model.description.architecture == "llama"
    events = [e async for e in stub.LoadModel(inference_pb2.LoadModelRequest(model="demo", keep_alive_ms=-1))]
    assert events[-1].WhichOneof("event") == "done"
    assert cluster.scheduler.ensured[-1].keep_alive_ms == -1
    assert cluster.scheduler.ensured[-1].at_once
    unloaded = await stub.UnloadModel(scheduler_pb2.UnloadModelRequest(model_name="demo"))
    assert unloaded.replicas == 1


@pytest.mark.parametrize(
    ("request_message", "code", "reason"),
    [
        (inference_pb2.ChatRequest(model="nope", messages=[USER]), grpc.StatusCode.NOT_FOUND, "model_not_found"),
        (inference_pb2.ChatRequest(messages=[USER]), grpc.StatusCode.INVALID_ARGUMENT, "invalid_value"),
        (inference_pb2.ChatRequest(model="demo"), grpc.StatusCode.INVALID_ARGUMENT, "invalid_value"),
        (
            inference_pb2.ChatRequest(model="demo", messages=[inference_pb2.ChatMessage(role="robot", content="x")]),
            grpc.StatusCode.INVALID_ARGUMENT,
            "invalid_value",
        ),
        (
            inference_pb2.ChatRequest(
                model="demo", messages=[USER], options=inference_pb2.AnswerOptions(top_logprobs=21)
            ),
            grpc.StatusCode.INVALID_ARGUMENT,
            "invalid_value",
        ),
        (
            inference_pb2.ChatRequest(
                model="demo",
                messages=[USER],
                options=inference_pb2.AnswerOptions(sampling=runner_pb2.Sampling(temperature=11)),
            ),
            grpc.StatusCode.INVALID_ARGUMENT,
            "invalid_value",
        ),
    ],
)
async def test_errors_are_statuses_with_details(
    stub: "inference_pb2_grpc.InferenceAsyncStub",
    request_message: inference_pb2.ChatRequest,
    code: grpc.StatusCode,
    reason: str,
) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        async for _ in stub.Chat(request_message):
            pass
    assert caught.value.code() == code
    status = rpc_status.from_call(caught.value)  # type: ignore[arg-type]
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == (reason, "puna")


async def test_cancelling_the_call_frees_the_slot(start_cluster: StartCluster) -> None:
    async def hang(_: ScriptedRunner) -> None:
        await asyncio.Event().wait()

    async with (
        start_cluster(runner=ScriptedRunner(after_piece={0: hang})) as cluster,
        aio.insecure_channel(cluster.gateway.grpc_address) as channel,
    ):
        stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
        call = stub.Chat(inference_pb2.ChatRequest(model="demo", messages=[USER]))
        async for event in call:
            if event.WhichOneof("event") == "delta":
                break
        call.cancel()
        await asyncio.wait_for(cluster.runner.released.wait(), 60)


async def test_the_clients_deadline_reaches_the_runner(start_cluster: StartCluster) -> None:
    async def hang(_: ScriptedRunner) -> None:
        await asyncio.Event().wait()

    async with (
        start_cluster(runner=ScriptedRunner(before=hang)) as cluster,
        aio.insecure_channel(cluster.gateway.grpc_address) as channel,
    ):
        stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
        timeout_s = 0.5
        while not cluster.runner.started.is_set():  # a busy machine may need longer to get there
            with pytest.raises(aio.AioRpcError) as caught:
                async for _ in stub.Chat(inference_pb2.ChatRequest(model="demo", messages=[USER]), timeout=timeout_s):
                    pass
            assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            timeout_s *= 2
        await asyncio.wait_for(cluster.runner.released.wait(), 60)


async def test_health_and_reflection_answer(channel: aio.Channel) -> None:
    check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]
    for service in ("", "puna.v1.Inference"):
        health = await check(health_pb2.HealthCheckRequest(service=service))
        assert health.status == health_pb2.HealthCheckResponse.SERVING
    request = reflection_pb2.ServerReflectionRequest(list_services="")

    async def requests() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield request

    stub = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
    call = stub.ServerReflectionInfo(requests())  # type: ignore[operator]
    async for answer in call:
        names = [service.name for service in answer.list_services_response.service]
        assert "puna.v1.Inference" in names
        break
