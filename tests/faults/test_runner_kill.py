"""`kill -9` on runners while clients stream: nobody notices more than a pause."""

import asyncio
import random
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx
import pytest

from tests.cluster import Cluster, metric_sum
from tests.faults.conftest import StartReplicas, busiest, ready_pids, wait_for_replicas
from tests.faults.faults import Killed, broken
from tests.faults.load import CLASSES, Outcome, ask, question, summary
from tests.waiting import until, wait_until

CLIENTS = 8
KILLS_MAX = 3  # so many crashes in a minute, and the model is not loaded there for a while
SEED = 20
TOKENS = 48
LONG_TOKENS = 200  # of streams that must still run after somebody has looked at the cluster
VARIANTS = 2
FAKE = {"step_s": 0.012}


@dataclass
class Storm:
    """Clients that ask without a pause, and a killer that strikes each request at most once."""

    cluster: Cluster
    undisturbed: dict[tuple[str, int], tuple[Any, ...]] = field(default_factory=dict)
    stops: dict[int, str] = field(default_factory=dict)
    outcomes: dict[str, list[Outcome]] = field(default_factory=lambda: {kind: [] for kind in CLASSES})
    differing: list[str] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    killed: list[int] = field(default_factory=list)
    numbers: Any = field(default_factory=count)
    over: bool = False

    def body(self, kind: str, variant: int) -> dict[str, Any]:
        return question(kind, variant, tokens=TOKENS, stop=self.stops[variant] if kind == "stop" else "")

    async def measure(self, client: httpx.AsyncClient) -> None:
        """The answers while nothing breaks. A stop string is a piece of the greedy answer, in its last third."""
        for variant in range(VARIANTS):
            first = await ask(client, question("greedy", variant, tokens=TOKENS))
            assert first.kind == "ok", first
            whole = first.choices[0].content
            self.stops[variant] = whole[-len(whole) // 3 :][:5]
            for kind in CLASSES:
                outcome = await ask(client, self.body(kind, variant))
                assert outcome.kind == "ok", (kind, outcome)
                self.undisturbed[kind, variant] = outcome.answer

    async def client(self, client: httpx.AsyncClient, at_least: int) -> None:
        """One request after the other, every class in turn."""
        kinds = list(CLASSES)
        asked = 0
        while not self.over or asked < at_least:
            number = next(self.numbers)
            kind, variant = kinds[number % len(kinds)], number // len(kinds) % VARIANTS
            self.running.add(number)
            outcome = await ask(client, self.body(kind, variant))
            self.running.discard(number)
            self.outcomes[kind].append(outcome)
            if outcome.kind == "ok" and outcome.answer != self.undisturbed[kind, variant]:
                self.differing.append(f"{kind} {variant}: {outcome.answer} != {self.undisturbed[kind, variant]}")
            asked += 1

    async def killer(self, kills: int, replicas: int) -> None:
        """At random moments; the next only when nobody who was hit by the last one is still on the way.

        A runner may have ended what it did just before it dies: more are killed until a request has felt it.
        """
        draw = random.Random(SEED)
        while len(self.killed) < kills or (len(self.killed) < KILLS_MAX and not await self.is_felt()):
            pids = await asyncio.to_thread(wait_for_replicas, self.cluster, replicas, without=frozenset(self.killed))
            at = max(self.running, default=0) + 1 + draw.randrange(CLIENTS)
            await until(lambda at=at: max(self.running, default=0) >= at, what="the storm goes on")  # type: ignore[misc]
            victim = await self.busy_one(pids)
            hit = set(self.running)
            with broken(Killed(victim)):
                self.killed.append(victim)
                await until(lambda hit=hit: not (hit & self.running), deadline_s=60, what="those who were hit end")  # type: ignore[misc]
        self.over = True

    async def is_felt(self) -> bool:
        """Return True if a request was at a runner when it died."""
        page = await asyncio.to_thread(httpx.get, f"{self.cluster.url}/metrics", timeout=60)
        return metric_sum(page.text, "puna_gateway_retries_total") > 0

    async def busy_one(self, pids: set[int]) -> int:
        """The one of these processes that computes most: what is shown is a little old."""
        busy: list[tuple[int, int]] = []

        def found() -> bool:
            runners = [one for one in self.cluster.runners() if one["pid"] in pids and one["slots_busy"]]
            busy[:] = sorted((one["slots_busy"], one["pid"]) for one in runners)
            return bool(busy)

        await asyncio.to_thread(wait_until, found, deadline_s=30, what="a runner is busy")
        return busy[-1][1]


async def storm(cluster: Cluster, *, kills: int, at_least: int, replicas: int) -> Storm:
    """Run it; the figures go to the test's output."""
    limits = httpx.Limits(max_connections=CLIENTS * 2)
    async with httpx.AsyncClient(base_url=cluster.url, timeout=None, limits=limits) as client:
        made = Storm(cluster)
        await made.measure(client)
        clients = [made.client(client, at_least) for _ in range(CLIENTS)]
        await asyncio.gather(made.killer(kills, replicas), *clients)
    print(f"seed {SEED}, killed {made.killed}\n{summary(made.outcomes)}")
    return made


async def check(made: Storm, *, kills: int) -> None:
    """0 failed in every class, nothing lost, doubled or changed, and the faults were really felt."""
    failed = {kind: [one for one in found if one.kind != "ok"] for kind, found in made.outcomes.items()}
    assert not any(failed.values()), failed
    assert made.differing == []
    assert len(made.killed) >= kills
    assert await made.is_felt(), "no request was at a runner when it died"


@pytest.mark.behaviour("B-140")
async def test_runner_kill_loses_nothing_in_any_class(start_replicas: StartReplicas) -> None:
    cluster = await asyncio.to_thread(start_replicas, 3, fake=FAKE)
    made = await storm(cluster, kills=2, at_least=14, replicas=2)
    await check(made, kills=2)
    assert all(len(found) >= CLIENTS * 2 - 1 for found in made.outcomes.values())


async def test_runner_kill_leaves_the_text_of_a_real_model_as_it_was(start_replicas: StartReplicas) -> None:
    cluster = await asyncio.to_thread(start_replicas, 2)
    made = await storm(cluster, kills=1, at_least=7, replicas=2)
    await check(made, kills=1)


async def test_runner_kill_of_the_only_replica_goes_on_after_the_reload(start_replicas: StartReplicas) -> None:
    cluster = await asyncio.to_thread(start_replicas, 1, fake={"step_s": 0.05, "load_s": 1.0})
    async with httpx.AsyncClient(base_url=cluster.url, timeout=150) as client:
        body = question("greedy", 0, tokens=2 * TOKENS)
        alone = await ask(client, body)
        (victim,) = ready_pids(cluster)
        seen = Outcome()
        asked = asyncio.create_task(ask(client, body, outcome=seen))
        await until(lambda: seen.has_begun, what="the stream runs")
        with broken(Killed(victim)):
            outcome = await asked
    assert (outcome.kind, outcome.resumes, outcome.answer) == ("ok", 1, alone.answer)
    assert victim not in ready_pids(cluster)


async def test_runner_kill_with_resuming_turned_off_is_an_explicit_error(start_replicas: StartReplicas) -> None:
    cluster = await asyncio.to_thread(start_replicas, 2, fake={"step_s": 0.05})
    async with httpx.AsyncClient(base_url=cluster.url, timeout=150) as client:
        body = question("greedy", 0, tokens=LONG_TOKENS)
        seen = [Outcome() for _ in range(6)]
        asked = [asyncio.create_task(ask(client, body, headers={"x-puna-resume": "0"}, outcome=one)) for one in seen]
        await until(lambda: all(one.has_begun for one in seen), what="the streams run")
        with broken(Killed(await asyncio.to_thread(busiest, cluster, len(asked)))):
            outcomes = await asyncio.gather(*asked)
    ends = {(one.kind, one.code) for one in outcomes}
    assert ("error", "runner_lost") in ends
    assert ends <= {("ok", ""), ("error", "runner_lost")}
    assert all(one.resumes == 0 for one in outcomes)


async def test_runner_kill_by_the_request_itself_ends_it_after_two(start_replicas: StartReplicas) -> None:
    poison = 666
    cluster = await asyncio.to_thread(start_replicas, 3, fake={"step_s": 0.02, "abort_on_seed": poison})
    before = ready_pids(cluster)
    async with httpx.AsyncClient(base_url=cluster.url, timeout=150) as client:
        innocent = question("seeded", 0, tokens=LONG_TOKENS)
        alone = await ask(client, innocent)
        seen = [Outcome() for _ in range(6)]
        neighbours = [asyncio.create_task(ask(client, innocent, outcome=one)) for one in seen]
        await until(lambda: all(one.has_begun for one in seen), what="the neighbours run")
        killer = question("seeded", 1, tokens=TOKENS) | {"seed": poison}
        outcome = await ask(client, killer)
        assert (outcome.kind, outcome.code) == ("error", "request_quarantined")
        again = await ask(client, killer)
        assert (again.kind, again.code) == ("error", "request_quarantined")
        others = await asyncio.gather(*neighbours)
    assert [(one.kind, one.answer) for one in others] == [("ok", alone.answer)] * 6
    assert len(before & wait_for_replicas(cluster, 3)) == 1, "two runners died, not one and not three"
    async with httpx.AsyncClient(base_url=cluster.url, timeout=150) as client:
        other = question("seeded", 0, tokens=TOKENS) | {"seed": poison}
        outcome = await ask(client, other)
        assert (outcome.kind, outcome.code) == ("error", "request_quarantined")
        wait_for_replicas(cluster, 3)
        assert (await ask(client, innocent)).answer == alone.answer, "four crashes in a minute, and the model serves"
