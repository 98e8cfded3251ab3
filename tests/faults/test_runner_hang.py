"""SIGSTOP on a runner: it holds its connections and says nothing. Silence is noticed, and nobody waits for it."""

import asyncio

import httpx
import pytest

from tests.faults.conftest import StartReplicas, busiest, ready_pids
from tests.faults.faults import Stopped, broken, process_state
from tests.faults.load import Outcome, ask, question
from tests.waiting import Stopwatch, next_look, until

STREAMS = 6
# The promises.
DIVERTED_S = 3.0
REPLACED_S = 10.0
RESUMED_S = 30.0
ASKED_EVERY_S = 0.1


@pytest.mark.behaviour("B-140")
async def test_runner_hang_while_busy_streams_go_on_elsewhere_and_it_is_replaced(start_replicas: StartReplicas) -> None:
    cluster = await asyncio.to_thread(start_replicas, 2, fake={"step_s": 0.05})
    async with httpx.AsyncClient(base_url=cluster.url, timeout=150) as client:
        body = question("seeded", 0, tokens=160)
        alone = await ask(client, body)
        seen = [Outcome() for _ in range(STREAMS)]
        asked = [asyncio.create_task(ask(client, body, outcome=one)) for one in seen]
        await until(lambda: all(one.has_begun for one in seen), what="the streams run")
        victim = await asyncio.to_thread(busiest, cluster, STREAMS)
        watch = Stopwatch()
        with broken(Stopped(victim)):
            await until(lambda: process_state(victim) in ("", "Z"), deadline_s=30, what="its host has killed it")
            killed_s = watch.wall_s
            outcomes = await asyncio.gather(*asked)
        await until(lambda: len(ready_pids(cluster) - {victim}) == 2, deadline_s=40, what="there is another one")
    gaps = sorted(round(one.gap_s, 2) for one in outcomes)
    print(f"n={STREAMS} resumes={sum(one.resumes for one in outcomes)} gaps={gaps} killed after {killed_s:.1f} s")
    assert {(one.kind, one.answer) for one in outcomes} == {("ok", alone.answer)}
    assert sum(one.resumes for one in outcomes) > 0
    watch.assert_within(RESUMED_S, "the longest pause", took_s=max(gaps))
    watch.assert_within(REPLACED_S, "its host has killed it", took_s=killed_s)


async def test_runner_hang_while_idle_requests_are_diverted(start_replicas: StartReplicas) -> None:
    cluster = await asyncio.to_thread(start_replicas, 2, fake={"step_s": 0.01})
    async with httpx.AsyncClient(base_url=cluster.url, timeout=150) as client:
        body = question("greedy", 0, tokens=8)
        alone = await ask(client, body)
        outcomes: list[tuple[float, Outcome, float]] = []  # when asked, what became of it, how long it took
        with broken(Stopped(min(ready_pids(cluster)))):
            since_stop = Stopwatch()
            asked: list[asyncio.Task[None]] = []

            async def one() -> None:
                begun_s = since_stop.wall_s
                outcome = await ask(client, body)
                outcomes.append((begun_s, outcome, since_stop.wall_s - begun_s))

            while since_stop.wall_s < DIVERTED_S + 2.0:  # an open loop: slow answers do not delay requests
                asked.append(asyncio.create_task(one()))
                await next_look(ASKED_EVERY_S)
            await asyncio.gather(*asked)
    later = [took_s for at_s, _, took_s in outcomes if at_s > DIVERTED_S]
    slow = [took_s for at_s, _, took_s in outcomes if at_s <= DIVERTED_S]
    slowest_s = max(later)
    print(f"n={len(outcomes)} slowest before/after {DIVERTED_S:g} s: {max(slow):.2f}/{slowest_s:.2f} s")
    assert {(one.kind, one.answer) for _, one, _ in outcomes} == {("ok", alone.answer)}
    since_stop.assert_within(DIVERTED_S, "the slowest answer after the diversion", took_s=slowest_s)
