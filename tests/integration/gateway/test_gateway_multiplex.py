"""Answers of one replica over one call: shared where the replica can, held apart where readers and faults differ."""

import asyncio
import json
from typing import Any

import pytest

from tests.integration.gateway.conftest import WAIT_S, Cluster, StartCluster, eventually
from tests.integration.gateway.scripted import ANSWER, ScriptedRunner
from tests.integration.gateway.test_gateway_resume import NATIVE, TEXT, dying, running

MANY = 24


async def lines(cluster: Cluster, **more: Any) -> list[Any]:
    """The objects of one streamed answer."""
    async with cluster.http.stream("POST", "/api/chat", json=NATIVE | more) as answer:
        assert answer.status_code == 200
        return [json.loads(line) async for line in answer.aiter_lines()]


def text_of(rows: list[Any]) -> str:
    return "".join(row["message"]["content"] for row in rows)


async def heard(cluster: Cluster) -> None:
    """Return once the gateway has the first report of every runner."""
    pool = cluster.gateway.service.inference.dispatcher.pool
    await eventually(lambda: all(one.runner.multiplexes for one in pool._connections.values()))


async def test_many_answers_share_one_call(start_cluster: StartCluster) -> None:
    runner = ScriptedRunner(slots=MANY)
    async with start_cluster(runner=runner) as cluster:
        await heard(cluster)
        answers = await asyncio.gather(*(lines(cluster) for _ in range(MANY)))
        assert {text_of(rows) for rows in answers} == {TEXT}
        assert (runner.multiplexed, len(runner.requests)) == (1, MANY)
        assert len(set(runner.request_ids)) == MANY, "each keeps its own id"


async def test_a_runner_of_an_earlier_build_gets_a_call_for_each(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedRunner, "multiplexes", False)
    runner = ScriptedRunner(slots=MANY)
    async with start_cluster(runner=runner) as cluster:
        answers = await asyncio.gather(*(lines(cluster) for _ in range(MANY)))
        assert {text_of(rows) for rows in answers} == {TEXT}
        assert (runner.multiplexed, len(runner.requests)) == (0, MANY)


async def test_a_large_request_gets_a_call_of_its_own(start_cluster: StartCluster) -> None:
    runner = ScriptedRunner(context_tokens=1_000_000)
    async with start_cluster(runner=runner) as cluster:
        await heard(cluster)
        large = [{"role": "user", "content": "many words " * 40_000}]
        assert text_of(await lines(cluster, messages=large)) == TEXT
        assert runner.multiplexed == 0
        assert text_of(await lines(cluster)) == TEXT
        assert runner.multiplexed == 1


@pytest.mark.parametrize("after", range(len(ANSWER) - 1))
async def test_every_answer_of_a_lost_call_goes_on_elsewhere(start_cluster: StartCluster, after: int) -> None:
    first, second = dying(after=after, slots=2 * MANY), ScriptedRunner(slots=MANY)
    async with running(start_cluster, first, second) as cluster:
        await heard(cluster)
        answers = await asyncio.gather(*(lines(cluster) for _ in range(MANY)))
        assert [text_of(rows) for rows in answers] == [TEXT] * MANY
        assert all([row["done"] for row in rows].count(True) == 1 for rows in answers)
        assert first.multiplexed == second.multiplexed == 1
        resumed = [list(request.resume_token_ids) for request in second.requests]
        assert sum(map(bool, resumed)) > 0
        assert all(ids == [100 + index for index in range(len(ids))] for ids in resumed)


async def test_a_client_that_reads_nothing_holds_up_no_other(start_cluster: StartCluster) -> None:
    pieces = [f"{number:05} {'x' * 20_000}" for number in range(1500)]
    runner = ScriptedRunner(pieces=pieces, slots=4)
    async with start_cluster(runner=runner) as cluster:
        await heard(cluster)
        async with cluster.http.stream("POST", "/api/chat", json=NATIVE) as slow:
            received = slow.aiter_lines()
            first = json.loads(await anext(received))
            other = text_of(await lines(cluster, options={"num_predict": 100}))
            assert other == "".join(pieces[:100])
            assert runner.busy == 1, "it waits for its reader"
            rows = [first, *[json.loads(line) async for line in received]]
        assert text_of(rows) == "".join(pieces)
        assert runner.multiplexed == 1


@pytest.mark.parametrize("phase", ["prompt", "answer"])
async def test_a_client_that_leaves_ends_its_sequence_alone(start_cluster: StartCluster, phase: str) -> None:
    may_go_on = asyncio.Event()

    async def wait(_: ScriptedRunner) -> None:
        await may_go_on.wait()

    runner = ScriptedRunner(before=wait) if phase == "prompt" else ScriptedRunner(after_piece={1: wait})
    async with start_cluster(runner=runner) as cluster:
        await heard(cluster)
        leaving, staying = (asyncio.create_task(lines(cluster)) for _ in range(2))
        await eventually(lambda: runner.busy == 2)
        leaving.cancel()
        await eventually(lambda: runner.busy == 1)
        may_go_on.set()
        async with asyncio.timeout(WAIT_S):
            assert text_of(await staying) == TEXT
        assert runner.multiplexed == 1


@pytest.mark.parametrize("is_first_newer", [True, False])
async def test_replicas_of_both_builds_continue_each_others_answers(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch, is_first_newer: bool
) -> None:
    first, second = dying(after=1, slots=2 * MANY), ScriptedRunner(slots=MANY)
    newer = first if is_first_newer else second
    monkeypatch.setattr(ScriptedRunner, "multiplexes", property(lambda one: one is newer))
    async with running(start_cluster, first, second) as cluster:
        pool = cluster.gateway.service.inference.dispatcher.pool
        await eventually(lambda: any(one.runner.multiplexes for one in pool._connections.values()))
        answers = await asyncio.gather(*(lines(cluster) for _ in range(4)))
        assert [text_of(rows) for rows in answers] == [TEXT] * 4
        assert [one.multiplexed for one in (first, second)] == [int(one is newer) for one in (first, second)]
