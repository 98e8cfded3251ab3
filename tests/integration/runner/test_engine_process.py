"""`python -m runner serve` with each engine: chosen by name, and a fake whose faults the process shows."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from common.errors import InsufficientMemory, ModelUnavailable, PunaError
from protos import cluster_pb2, runner_pb2
from runner.client import RunnerClient
from runner.serve.app import EXIT_LOAD_FAILED
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.processes import DEADLINE_S, ROOT, RunnerProcess, collect, greedy, started
from tests.waiting import until

FAKE = '{"engine": "fake", "slots": 2, "contextTokens": 512}'

pytestmark = pytest.mark.behaviour("B-150")


@asynccontextmanager
async def fake(directory: Path, **options: Any) -> AsyncIterator[RunnerProcess]:
    """A runner with a fake engine and no model file."""
    argument = ("--engine-options", json.dumps(options))
    async with started(directory / "none.gguf", directory, *argument, layout=FAKE) as runner:
        yield runner


async def read_into(tokens: list[runner_pb2.Token], client: RunnerClient) -> None:
    """Gather the tokens of an answer, also of one that never ends."""
    async for event in client.generate(greedy("Hello")):
        tokens += event.tokens.tokens


async def failed_start(*arguments: str, **environment: str) -> tuple[int, str]:
    """Exit status and stderr of a runner that cannot start."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "runner", "serve", "--model", "none.gguf", *arguments),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    async with asyncio.timeout(DEADLINE_S):
        _, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stderr.decode()


async def test_a_fake_answers_over_grpc_without_a_model_file(tmp_path: Path) -> None:
    async with fake(tmp_path) as runner:
        status = await runner.ready()
        assert (status.state, status.slots_total) == (cluster_pb2.RUNNER_STATE_READY, 2)
        answer = await collect(runner.client, greedy("Hello", top_logprobs=2))
        assert len(answer.tokens) == 16
        assert answer.finals[0].reason == runner_pb2.DONE_REASON_LENGTH
        assert answer.text == b"".join(token.piece for token in answer.tokens).decode()
        assert all(token.logprob == token.top[0].logprob for token in answer.tokens)
        info = await runner.client.info()
        assert info.layout.engine == "fake"
        runner.process.send_signal(signal.SIGTERM)
        assert await runner.exit_status() == 0


async def test_the_reference_answers_over_grpc(zoo: Zoo, tmp_path: Path) -> None:
    layout = '{"engine": "reference", "slots": 4, "contextTokens": 512, "threads": 1}'
    async with started(zoo("dense"), tmp_path, layout=layout) as runner:
        status = await runner.ready()
        assert (status.state, status.slots_total) == (cluster_pb2.RUNNER_STATE_READY, 1)
        assert len((await collect(runner.client, greedy("Hello"))).tokens) == 16
        assert (await runner.client.info()).layout.engine == "reference"


@pytest.mark.parametrize("setting", ["layout", "environment"])
async def test_an_unknown_engine_ends_the_start_with_one_line(setting: str) -> None:
    if setting == "layout":
        status, stderr = await failed_start("--layout", '{"engine": "warp"}')
    else:
        status, stderr = await failed_start(PUNA_ENGINE="warp")
    assert status == 1
    assert stderr == "puna runner: there is no engine 'warp'; there are batched, pooled, reference, fake\n"


async def test_an_unknown_option_of_the_fake_ends_the_start_with_one_line() -> None:
    status, stderr = await failed_start("--engine-options", '{"speed": 3}', PUNA_ENGINE="fake")
    assert status == 1
    assert stderr.startswith("puna runner: engine options: speed: ")
    assert stderr.count("\n") == 1


async def test_a_load_takes_its_time_and_may_fail(tmp_path: Path) -> None:
    async with fake(tmp_path, load_s=4.0, load_error="insufficient_memory") as runner:
        fractions = []
        async for status in runner.client.watch_load(timeout_s=DEADLINE_S):
            fractions.append(status.load_fraction)
            if status.state == cluster_pb2.RUNNER_STATE_ERROR:
                break
        assert fractions == sorted(fractions)
        assert len(set(fractions)) > 3
        assert status.error.reason == InsufficientMemory.reason
        assert await runner.exit_status() == EXIT_LOAD_FAILED


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("exit_status", "seen"), [(70, 70), (1, 1), (None, -signal.SIGABRT)])
async def test_it_dies_in_the_middle_of_an_answer(exit_status: int | None, seen: int, tmp_path: Path) -> None:
    # The first token has four steps to get here, on a busy machine too.
    async with fake(tmp_path, die_after_tokens=5, exit_status=exit_status, step_s=0.5) as runner:
        await runner.ready()
        tokens: list[runner_pb2.Token] = []
        with pytest.raises(PunaError) as lost:
            await read_into(tokens, runner.client)
        assert lost.value.reason == ModelUnavailable.reason
        assert 0 < len(tokens) <= 5
        assert await runner.exit_status() == seen


@pytest.mark.usefixtures("way")
async def test_a_poisoned_request_kills_it_and_no_other_does(tmp_path: Path) -> None:
    async with fake(tmp_path, abort_on_seed=666) as runner:
        await runner.ready()
        assert len((await collect(runner.client, greedy("Hello"))).tokens) == 16
        poisoned = greedy("Hello")
        poisoned.sampling.seed = 666
        with pytest.raises(PunaError):
            await collect(runner.client, poisoned)
        assert await runner.exit_status() == -signal.SIGABRT


@pytest.mark.usefixtures("way")
async def test_a_stall_keeps_the_process_and_every_answer_waiting(tmp_path: Path) -> None:
    async with fake(tmp_path, stall_after_tokens=5) as runner:
        await runner.ready()
        tokens: list[runner_pb2.Token] = []
        reading = asyncio.create_task(read_into(tokens, runner.client))
        await until(lambda: len(tokens) == 5, deadline_s=60, what="what it says before it stalls")
        await asyncio.wait({reading}, timeout=1.0)
        assert (reading.done(), len(tokens)) == (False, 5)
        assert runner.process.returncode is None
        status = await runner.status_where(state=cluster_pb2.RUNNER_STATE_READY)
        assert status.slots_busy == 1
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_signal_may_be_ignored(tmp_path: Path) -> None:
    async with fake(tmp_path, ignore_sigterm=True) as runner:
        await runner.ready()
        runner.process.send_signal(signal.SIGTERM)
        assert len((await collect(runner.client, greedy("Hello"))).tokens) == 16
        assert runner.process.returncode is None
        runner.process.kill()
        assert await runner.exit_status() == -signal.SIGKILL
