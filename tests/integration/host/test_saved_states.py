"""Conversations that outlive their runner, on a real node: swap, SIGKILL, a restart of the host."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protos import cluster_pb2, host_pb2, runner_pb2
from runner.client import RunnerClient
from tests.integration.host.node import Node, running_node
from tests.integration.runner.processes import Answer, collect, greedy
from tests.waiting import until

READY = cluster_pb2.RUNNER_STATE_READY
LONG = cluster_pb2.Layout(context_tokens=2048, slots=2, batch_tokens=256, threads=1)
PROMPT = " ".join(f"word{number}" for number in range(120))


@pytest.fixture
async def node(tmp_path: Path, models_directory: Path) -> AsyncIterator[Node]:
    """A node with a tier in RAM and one on disk."""
    async with running_node(tmp_path, models_directory, PUNA_STATES_RAM="64MiB", PUNA_STATES_DISK="64MiB") as node:
        yield node


@asynccontextmanager
async def runner_of(record: cluster_pb2.RunnerRecord) -> AsyncIterator[RunnerClient]:
    async with RunnerClient(record.address) as client:
        yield client


def question(text: str = PROMPT, **fields: object) -> runner_pb2.GenerateRequest:
    return greedy(text, cache_prompt=True, max_tokens=8, **fields)


async def ask(record: cluster_pb2.RunnerRecord, request: runner_pb2.GenerateRequest | None = None) -> Answer:
    async with runner_of(record) as client:
        return await collect(client, request or question())


async def started(node: Node) -> tuple[host_pb2.StartRequest, cluster_pb2.RunnerRecord]:
    request = await node.start_request(layout=LONG)
    record = await node.run(request)
    assert record.status.state == READY
    return request, record


async def saved(node: Node, record: cluster_pb2.RunnerRecord) -> None:
    """Wait until the runner's log says that it has nothing left to save: its host has a state."""
    log = next((node.home / "logs").glob(f"runner-{record.placement.placement_id}-*.log"))
    await until(lambda: "state.saved" in log.read_text(), what="the state is saved")


def computed(answer: Answer) -> int:
    """Tokens of the prompt that were computed again."""
    final = answer.finals[0]
    return final.prompt_tokens - final.cached_tokens


async def test_a_model_that_is_stopped_and_started_again_goes_on_with_its_conversations(node: Node) -> None:
    request, record = await started(node)
    before = await ask(record)
    assert computed(before) > 200
    await node.stop(request, drain_ms=1000)
    _, again = await started(node)
    after = await ask(again)
    assert (computed(after), after.text) == (1, before.text)


async def test_a_conversation_survives_the_sigkill_of_its_runner(node: Node) -> None:
    _, record = await started(node)
    before = await ask(record)
    await saved(node, record)
    os.kill(record.pid, signal.SIGKILL)
    _, again = await started(node)
    after = await ask(again)
    assert (computed(after), after.text) == (1, before.text)


async def test_a_conversation_survives_an_orderly_restart_of_the_host(node: Node) -> None:
    _, record = await started(node)
    before = await ask(record)
    assert await node.host.end() == 0
    assert list((node.home / "states").glob("*.state"))
    await node.restart_host()
    _, again = await started(node)
    after = await ask(again)
    assert (computed(after), after.text) == (1, before.text)


async def test_an_adopted_runner_saves_to_the_next_host(node: Node) -> None:
    request, record = await started(node)
    before = await ask(record)
    await node.host.end(signal.SIGKILL)
    await node.restart_host()
    await node.inventory(lambda inventory: any(r.status.state == READY for n in inventory.nodes for r in n.runners))
    await node.stop(request, drain_ms=1000)
    _, again = await started(node)
    after = await ask(again)
    assert after.text == before.text, "the earlier host had the state in RAM only; the runner saved it again"
    assert computed(after) == 1
