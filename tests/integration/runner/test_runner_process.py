"""`python -m runner serve` over real gRPC: start, load, serve, refuse, drain, die."""

import asyncio
import os
import re
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.errors import (
    BadModelFile,
    InsufficientMemory,
    InvalidRequest,
    ModelUnavailable,
    PlacementMismatch,
    PromptTooLong,
    PunaError,
    QueueFull,
    ShuttingDown,
)
from protos import cluster_pb2, runner_pb2
from runner.client import RunnerClient
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.processes import ROOT, collect, greedy, started
from tests.waiting import Stopwatch
from tools.model_zoo import damage


def placement(placement_id: str, generation: int, incarnation: str) -> cluster_pb2.PlacementRef:
    return cluster_pb2.PlacementRef(placement_id=placement_id, generation=generation, incarnation=incarnation)


@pytest.mark.usefixtures("way")
async def test_it_says_hello_loads_serves_and_leaves_on_a_signal(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        assert runner.hello["address"] == f"unix:{tmp_path}/runner.sock"
        assert runner.hello["pid"] == runner.process.pid
        status = await runner.ready()
        assert status.state == cluster_pb2.RUNNER_STATE_READY
        assert (status.slots_total, status.slots_busy, status.load_fraction) == (4, 0, 1.0)
        assert status.memory.host.cache_bytes > 0
        answer = await collect(runner.client, greedy("Hello"))
        assert len(answer.tokens) == 16
        assert answer.finals[0].reason == runner_pb2.DONE_REASON_LENGTH
        assert answer.finals[0].generated_tokens == 16
        assert answer.text == b"".join(token.piece for token in answer.tokens).decode("utf-8", "replace")
        runner.process.send_signal(signal.SIGTERM)
        assert await runner.exit_status() == 0


@pytest.mark.behaviour("B-80")
async def test_load_progress_never_falls_and_ends_at_one(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        told = []
        async for status in runner.client.watch_load(timeout_s=60):
            told.append((status.load_fraction, status.load_bytes_done, status.load_bytes_total))
            if status.state == cluster_pb2.RUNNER_STATE_READY:
                break
        runner.process.send_signal(signal.SIGTERM)
        assert await runner.exit_status() == 0  # its log is complete
    assert told == sorted(told)
    (loaded,) = [event for event in runner.events() if event["event"] == "model.loaded"]
    weights_bytes = loaded["weights_bytes"]
    assert told[-1] == (1.0, weights_bytes, weights_bytes)
    assert told[0][0] < 1.0, "some progress comes before the end"
    assert {total for fraction, _, total in told if fraction} == {weights_bytes}, "known from the beginning"


async def test_one_replica_more_reads_the_vocabulary_for_grammars_before_it_is_ready(zoo: Zoo, tmp_path: Path) -> None:
    for options in (["--extra"], []):
        async with started(zoo("dense"), tmp_path, *options) as runner:
            await runner.ready()
            ready_at = datetime.now(UTC)
            answer = await collect(runner.client, greedy("Hello", grammar='root ::= "abc"', ignore_eos=False))
            assert answer.text == "abc"
            runner.process.send_signal(signal.SIGTERM)
            assert await runner.exit_status() == 0  # its log is complete
        (read,) = [event for event in runner.events() if event["event"] == "grammar.vocabulary_read"]
        assert (datetime.fromisoformat(read["timestamp"]) < ready_at) is bool(options)


@pytest.mark.behaviour("B-85")
async def test_one_record_describes_the_engine(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        await runner.ready()
        await collect(runner.client, greedy("Hello"))
    records = [event for event in runner.events() if event["event"] == "engine.system"]
    assert len(records) == 1
    assert records[0]["threads"] == 1
    assert records[0]["cpu"]["features"]
    assert records[0]["engine"].startswith("llama-cpp-python ")
    assert [(device["index"], device["name"]) for device in records[0]["devices"]] == [(0, "CPU")]


async def test_info_says_who_runs_and_what_is_loaded(zoo: Zoo, tmp_path: Path) -> None:
    options = ("--name", "zoo:latest", "--digest", "ab" * 32, "--placement", "p-1", "--generation", "3")
    async with started(zoo("dense"), tmp_path, *options) as runner:
        await runner.ready()
        info = await runner.client.info()
        assert (info.model_name, info.model_digest) == ("zoo:latest", "ab" * 32)
        assert (info.placement.placement_id, info.placement.generation) == ("p-1", 3)
        assert info.placement.incarnation == runner.hello["incarnation"]
        assert (info.layout.slots, info.layout.context_tokens, info.layout.batch_tokens) == (4, 512, 512)
        assert info.memory.origin == cluster_pb2.MEMORY_ORIGIN_ALLOCATED
        assert info.engine_build


async def test_tokens_and_text_go_both_ways(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        await runner.ready()
        segments = [runner_pb2.Segment(text="<|im_start|>"), runner_pb2.Segment(literal="<|im_start|> Grüße")]
        response = await runner.client.tokenize(runner_pb2.TokenizeRequest(segments=segments))
        assert b"".join(response.pieces).decode() == "<|im_start|><|im_start|> Grüße"
        # Only the template's text becomes the control token.
        assert list(response.pieces).count(b"<|im_start|>") == 1
        assert (await runner.client.detokenize(list(response.ids))).decode() == "<|im_start|><|im_start|> Grüße"
        with pytest.raises(InvalidRequest):
            await runner.client.detokenize([10**6])


async def test_health_and_reflection_answer(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        await runner.ready()
        async with aio.insecure_channel(runner.hello["address"]) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            call = health.Watch(health_pb2.HealthCheckRequest())  # type: ignore[attr-defined]
            async with asyncio.timeout(60):
                async for state in call:
                    if state.status == health_pb2.HealthCheckResponse.SERVING:
                        break
            call.cancel()
            reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
            stream = reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
            answer = await stream.read()
            names = {service.name for service in answer.list_services_response.service}
            assert "puna.v1.Runner" in names


@pytest.mark.usefixtures("way")
async def test_a_request_for_another_placement_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path, "--placement", "p-1", "--generation", "2") as runner:
        await runner.ready()
        incarnation = runner.hello["incarnation"]
        for wrong in (("p-2", 2, ""), ("p-1", 1, ""), ("p-1", 2, "somebody")):
            with pytest.raises(PlacementMismatch):
                await collect(runner.client, greedy("Hello", placement=placement(*wrong)))
        right = greedy("Hello", placement=placement("p-1", 2, incarnation))
        assert len((await collect(runner.client, right)).tokens) == 16


@pytest.mark.usefixtures("way")
@pytest.mark.behaviour("B-56")
async def test_bad_requests_are_refused_in_words_and_hurt_nobody(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        await runner.ready()
        neighbour = asyncio.create_task(collect(runner.client, greedy("Hello", max_tokens=400)))
        wrong: list[tuple[runner_pb2.GenerateRequest, type[PunaError], str]] = [
            (runner_pb2.GenerateRequest(), InvalidRequest, "no input provided"),
            (
                greedy("x " * 600, truncate=False),
                PromptTooLong,
                "the input length exceeds the context length: 1200 tokens > 512 maximum",
            ),
            (greedy("x", top_logprobs=21), InvalidRequest, "top_logprobs must be between 0 and 20"),
            (greedy("x", resume_token_ids=[10**6]), InvalidRequest, "a token id is outside of the vocabulary of 1024"),
            (greedy("x", stop=["s"] * 65), InvalidRequest, "at most 64 stop strings are allowed"),
        ]
        for request, kind, text in wrong:
            with pytest.raises(kind) as refused:
                await collect(runner.client, request)
            assert refused.value.message == text
        assert len((await neighbour).tokens) == 400
        assert (await runner.status_where(slots_busy=0)).queued == 0


@pytest.mark.usefixtures("way")
async def test_leaving_a_call_frees_its_slot(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        await runner.ready()
        events = runner.client.generate(greedy("Hello", max_tokens=5000))
        async for _ in events:
            break
        assert await runner.metric("puna_runner_slots_busy") == 1
        await events.aclose()  # type: ignore[attr-defined]
        await runner.status_where(slots_busy=0, queued=0)
        assert await runner.metric("puna_runner_slots_busy") == 0
        assert await runner.metric("puna_runner_requests_total") == 1


@pytest.mark.usefixtures("way")
@pytest.mark.behaviour("B-47")
async def test_ten_times_as_many_requests_as_slots_are_all_answered(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        await runner.ready()
        calls = [collect(runner.client, greedy(f"Number {index}", max_tokens=200)) for index in range(40)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, QueueFull)]
        served = [answer for answer in answers if not isinstance(answer, BaseException)]
        assert len(refused) + len(served) == 40
        assert len(served) >= 20
        assert all(len(answer.tokens) == 200 for answer in served)
        assert refused
        assert all(error.retry_after_s for error in refused)
        shared = await runner.metric("puna_runner_batch_sequences_sum")
        assert shared / await runner.metric("puna_runner_batch_sequences_count") > 2


async def test_keep_alive_is_remembered_and_idle_time_reported(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        assert not (await runner.ready()).HasField("keep_alive_ms")
        await collect(runner.client, greedy("Hello", keep_alive_ms=-1))
        assert (await runner.status_where(slots_busy=0)).keep_alive_ms == -1
        await collect(runner.client, greedy("Hello", keep_alive_ms=60_000))
        await collect(runner.client, greedy("Hello", keep_alive_ms=60_000))
        await collect(runner.client, greedy("Hello"))
        status = await runner.status_where(slots_busy=0)
        assert (status.keep_alive_ms, status.keep_alive_wishes) == (60_000, 3)


async def test_the_time_that_held_prompts_took_is_told_once_a_prompt_is_held(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        assert (await runner.ready()).held_prompt_ms == 0
        answer = await collect(runner.client, greedy("a prompt of many words " * 40))
        spent_ms = answer.finals[0].prompt_duration_ns / 1e6
        status = await runner.status_where(slots_busy=0)
        # The slot holds the prompt and what was generated, a little more than what the time was measured for.
        assert status.held_prompt_ms == pytest.approx(spent_ms, rel=0.5, abs=1)


@pytest.mark.usefixtures("way")
async def test_a_signal_lets_running_sequences_finish_and_refuses_new_ones(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        await runner.ready()
        events = runner.client.generate(greedy("Hello", max_tokens=3000))  # not read on: it waits for its reader
        tokens = len((await anext(events)).tokens.tokens)
        runner.process.send_signal(signal.SIGTERM)
        await runner.status_where(state=cluster_pb2.RUNNER_STATE_DRAINING)
        with pytest.raises(ShuttingDown):
            await collect(runner.client, greedy("Too late"))
        async for event in events:
            tokens += len(event.tokens.tokens)
        assert tokens == 3000
        assert await runner.exit_status() == 0


@pytest.mark.behaviour("B-83")
@pytest.mark.parametrize("kind", ["missing", "empty", "cut", "no-gguf"])
async def test_a_file_that_cannot_be_loaded_is_an_error_status_and_exit_three(
    zoo: Zoo, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "broken.gguf"
    match kind:
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path = damage(zoo("dense"), "cut-in-data")
        case "no-gguf":
            path.write_bytes(b"This is not a model." * 100)
    async with started(path, tmp_path) as runner:
        status = await runner.ready()
        assert status.state == cluster_pb2.RUNNER_STATE_ERROR
        assert status.error.reason == BadModelFile.reason
        assert path.name in status.error.message
        assert await runner.exit_status() == 3


@pytest.mark.usefixtures("way")
@pytest.mark.behaviour("B-10")
async def test_an_engine_that_dies_takes_its_process_along_at_once(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        await runner.ready()
        calls = [
            asyncio.create_task(collect(runner.client, greedy(f"Number {index}", max_tokens=5000)))
            for index in range(8)
        ]
        await runner.status_where(slots_busy=4, queued=4)
        watch = Stopwatch()
        os.kill(runner.process.pid, signal.SIGABRT)  # what an assertion inside ggml does
        assert await runner.exit_status() != 0
        answers = await asyncio.gather(*calls, return_exceptions=True)
        took_s = watch.wall_s
        assert all(isinstance(answer, ModelUnavailable) for answer in answers)
    watch.assert_within(1.0, "the process ends and its callers know", took_s=took_s)


async def test_a_signal_during_the_load_ends_it(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        runner.process.send_signal(signal.SIGTERM)
        assert await runner.exit_status() == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--layout", '{"slotz": 1}'), "no field named"),
        (("--listen", "0.0.0.0:0"), "PUNA_PLAINTEXT=1"),
    ],
)
async def test_what_cannot_start_says_so_in_one_line(zoo: Zoo, options: tuple[str, ...], text: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "runner", "serve", "--model", str(zoo("dense")), *options),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(120):
        _, stderr = await process.communicate()
    assert process.returncode == 1
    lines = stderr.decode().splitlines()
    assert len(lines) == 1
    assert text in lines[0]


@pytest.mark.usefixtures("way")
async def test_generation_is_refused_while_loading_or_failed(tmp_path: Path) -> None:
    async with started(tmp_path / "none.gguf", tmp_path) as runner:
        with pytest.raises(PunaError) as refused:
            await collect(runner.client, greedy("Hello"))
        assert refused.value.reason in ("model_loading", "model_unavailable")


@pytest.mark.behaviour("B-10")
async def test_an_exception_in_the_engine_thread_ends_the_process_and_says_why(zoo: Zoo, tmp_path: Path) -> None:
    program = (
        "import sys, time; from runner.engine.bindings import library; from runner import __main__ as runner\n"
        "decode, calls = library.decode, []\n"
        "def broken(*args):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 20:\n"
        "        print('broken at', time.monotonic(), file=sys.stderr, flush=True)\n"
        "        raise ValueError('injected')\n"
        "    return decode(*args)\n"
        "library.decode = broken\n"
        f"sys.argv[1:] = ['serve', '--model', {str(zoo('dense'))!r}, '--listen', 'unix:{tmp_path}/runner.sock']\n"
        "runner.main()\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    async with RunnerClient(f"unix:{tmp_path}/runner.sock") as client, asyncio.timeout(200):
        assert process.stdout is not None
        await process.stdout.readline()
        async for status in client.watch_load():
            if status.state == cluster_pb2.RUNNER_STATE_READY:
                break
        calls = [collect(client, greedy(f"Number {index}", max_tokens=500)) for index in range(8)]
        watch = Stopwatch()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        _, stderr = await process.communicate()
        ended_s = time.monotonic()
    assert all(isinstance(answer, ModelUnavailable) for answer in answers)
    assert process.returncode == 70
    broken = re.search(rb"broken at ([0-9.]+)", stderr)
    assert broken is not None
    assert b"engine.died" in stderr
    assert b"injected" in stderr
    watch.assert_within(1.0, "the process ends", took_s=ended_s - float(broken[1]))


@pytest.mark.behaviour("B-61", "B-68")
async def test_a_layout_that_can_never_fit_is_refused_with_its_sizes(zoo: Zoo, tmp_path: Path) -> None:
    layout = '{"slots": 64, "contextTokens": 30000000, "threads": 1}'
    async with started(zoo("dense"), tmp_path, layout=layout) as runner:
        status = await runner.ready()
        assert status.state == cluster_pb2.RUNNER_STATE_ERROR
        assert status.error.reason == InsufficientMemory.reason
        assert status.error.attempted.origin == cluster_pb2.MEMORY_ORIGIN_ATTEMPTED
        # 8 layers with 2 key heads of 32 values: 2 KiB for each cell.
        assert status.error.attempted.host.cache_bytes > 64 * 30_000_000 * 1024
        assert "host RAM" in status.error.message
        assert await runner.exit_status() == 3
