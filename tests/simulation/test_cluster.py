"""A cluster with gateways and runners in virtual time: seeds that hold the rules, and bugs that break them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

import tests.simulation.cluster.node
from gateway.converters import generation as converters
from gateway.core.dispatch.resume import Suspicion
from protos import runner_pb2
from runner.core.host.fences import FenceVerdict
from runner.serve.streams import ProbationPlace, StreamTable
from tests.simulation.cluster.episode import Episode
from tests.simulation.cluster.scenario import CALM, Plan, Scenario, Step
from tests.simulation.cluster.shrink import Shrunk, rule_of, shrink

BRIEF = Plan(seconds=10.0, requests_per_s=1.5, faults_per_s=0.8, poison_share=0.0)
SEEDS_MAX = 12  # in which a planted bug shows itself
STEPS_MAX = 4  # of its shortest trace


@pytest.mark.timeout(300)
@pytest.mark.behaviour("B-131", "B-133")
def test_rules_hold_while_processes_die_hang_and_are_cut_off() -> None:
    outcomes: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    resumes = 0
    for seed in (3, 4, 5):
        result = Episode(Scenario.drawn(seed, Plan(seconds=30.0, faults_per_s=0.6))).run()
        assert not result.violation, f"python -m tests.simulation --episode {seed}: {result.violation}"
        outcomes += result.outcomes
        happened += result.happened
        resumes += result.resumes
    assert outcomes["done"] > 100, outcomes
    assert len(happened) > 8, happened
    assert resumes > 0


@pytest.mark.timeout(120)
def test_every_request_is_answered_where_nothing_breaks() -> None:
    result = Episode(Scenario.drawn(1, replace(CALM, seconds=20.0))).run()
    assert not result.violation
    assert set(result.outcomes) == {"done"}


@pytest.mark.timeout(120)
def test_an_episode_is_replayable_from_its_seed() -> None:
    scenario = Scenario.drawn(6, Plan(seconds=15.0, faults_per_s=0.8))
    first, second = Episode(scenario).run(), Episode(scenario).run()
    assert (first.trace, first.events, first.outcomes) == (second.trace, second.events, second.outcomes)
    assert first.happened


def found(plan: Plan, rule: str) -> Shrunk:
    """Return the shortest trace of the first seed that breaks a rule."""
    for seed in range(1, SEEDS_MAX + 1):
        scenario = Scenario.drawn(seed, plan)
        violation = Episode(scenario).run().violation
        if violation:
            assert rule_of(violation) == rule, violation
            return shrink(scenario, violation, runs_max=40)
    raise AssertionError(f"no seed up to {SEEDS_MAX} shows the planted bug")


def check_shortest(shortest: Shrunk, rule: str, kinds: set[str]) -> None:
    """Check that a trace is short, breaks the rule again, and does not without any one of its steps."""
    scenario = shortest.scenario
    assert len(scenario.steps) <= STEPS_MAX, shortest.text()
    assert {step.kind for step in scenario.steps} == kinds, shortest.text()
    assert rule_of(Episode(scenario).run().violation) == rule
    for left_out in range(len(scenario.steps)):
        fewer = scenario.steps[:left_out] + scenario.steps[left_out + 1 :]
        assert rule_of(Episode(replace(scenario, steps=fewer)).run().violation) != rule, shortest.text()


@pytest.mark.timeout(300)
def test_a_resume_that_drops_a_token_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = converters.generate_request

    def dropping(**fields: Any) -> Any:
        return honest(**{**fields, "delivered": fields["delivered"][:-1]})

    monkeypatch.setattr(converters, "generate_request", dropping)
    shortest = found(replace(BRIEF, faults=("kill_runner",)), "rule 4")
    check_shortest(shortest, "rule 4", {"request", "kill_runner"})


@pytest.mark.timeout(300)
def test_a_slot_that_stays_taken_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamTable, "close", lambda _self, _stream: None)
    shortest = found(replace(BRIEF, faults=("client_leaves",)), "rule 5")
    check_shortest(shortest, "rule 5", {"request", "client_leaves"})


# One request in seven ends its runner; the clients of two gateways share the runners.
POISONED = Plan(
    seconds=20.0, requests_per_s=3.0, faults_per_s=0.0, gateways=2, models=(6.0,), slots=4, poison_share=0.15
)


@pytest.mark.timeout(300)
def test_no_request_is_refused_for_the_crash_of_a_suspect_of_another_gateway() -> None:
    refused = 0
    for seed in range(1, 5):
        result = Episode(Scenario.drawn(seed, POISONED)).run()
        assert not result.violation, f"seed {seed}: {result.violation}"
        refused += result.outcomes["request_quarantined"]
    assert refused > 10


@pytest.mark.timeout(300)
def test_runners_that_compute_suspects_of_several_gateways_at_once_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def crowded(_: ProbationPlace) -> AsyncIterator[runner_pb2.ProbationGranted]:
        yield runner_pb2.ProbationGranted()
        await asyncio.Event().wait()

    monkeypatch.setattr(ProbationPlace, "hold", crowded)
    violation = Episode(Scenario.drawn(1, POISONED)).run().violation
    assert rule_of(violation) == "blame", violation


@pytest.mark.timeout(300)
def test_a_request_that_is_refused_for_a_second_crash_of_unknown_cause_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def second(suspicion: Suspicion) -> bool:
        return suspicion.crashes > 1

    monkeypatch.setattr(Suspicion, "is_poison", property(second))
    violations = (Episode(Scenario.drawn(seed, POISONED)).run().violation for seed in range(1, SEEDS_MAX + 1))
    assert any(rule_of(violation) == "blame" for violation in violations if violation)


# A leader whose commands are held up on their way to the nodes loses the store, too. A runner dies meanwhile: the old
# leader's order to start it again arrives behind the new leader's.
LATE_COMMAND = (
    Step(0.5, "request", (0.0, 0.0, 10, 12, 200, 0.6, 0)),
    Step(3.5, "isolate_leader", (0.0, 0.0, 8.0, 0.0)),
    Step(3.6, "kill_runner", (0.0, 0.0, 0.0, 0.0)),
    Step(5.5, "isolate_leader", (0.0, 0.0, 6.0, 1.0)),
)


@pytest.mark.timeout(300)
def test_a_host_that_obeys_a_stale_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def obedient(*_: object, **__: object) -> FenceVerdict:
        return FenceVerdict.ACCEPTED

    scenario = Scenario(1, Plan(seconds=15.0), LATE_COMMAND)
    assert not Episode(scenario).run().violation
    monkeypatch.setattr(tests.simulation.cluster.node, "judge_fence", obedient)
    assert rule_of(Episode(scenario).run().violation) == "rule 2"
