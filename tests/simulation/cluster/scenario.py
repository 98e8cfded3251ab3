"""Scenarios: steps at times, drawn from a seed. A part of the steps is a scenario, too."""

import random
from dataclasses import dataclass, field

HARMLESS = "request"
# Faults by weight. A number in a step names one of those that are there then, so that steps mean something alone.
FAULTS = {
    "kill_runner": 8,
    "pause_runner": 5,
    "kill_host": 2,
    "kill_node": 1,
    "kill_gateway": 1,
    "kill_scheduler": 3,
    "pause_scheduler": 3,
    "kill_discovery": 2,
    "kill_redis": 2,
    "flush_redis": 1,
    "cut": 6,
    "isolate_leader": 3,
    "loss": 2,
    "clock": 2,
    "client_leaves": 4,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens. `numbers` are drawn for its kind."""

    at_s: float
    kind: str
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Size of a cluster and load on it."""

    seconds: float = 60.0
    requests_per_s: float = 2.0
    faults_per_s: float = 0.15
    gateways: int = 2
    schedulers: int = 2
    nodes: tuple[tuple[float, float], ...] = ((24.0, 64.0), (24.0, 64.0), (12.0, 32.0))  # GiB of GPU and RAM
    models: tuple[float, ...] = (4.0, 6.0, 9.0)  # GiB
    slots: int = 2
    poison_share: float = 0.01
    faults: tuple[str, ...] = tuple(FAULTS)


CALM = Plan(faults_per_s=0.0, poison_share=0.0)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a run depends on."""

    seed: int
    plan: Plan
    steps: tuple[Step, ...] = field(repr=False)

    @classmethod
    def drawn(cls, seed: int, plan: Plan) -> "Scenario":
        """Draw the steps of a seed."""
        rng = random.Random(f"{seed} scenario")
        steps = [*_requests(rng, plan), *_faults(rng, plan)]
        return cls(seed, plan, tuple(sorted(steps, key=lambda step: step.at_s)))


def _requests(rng: random.Random, plan: Plan) -> list[Step]:
    steps, now_s = list[Step](), 0.0
    while plan.requests_per_s and (now_s := now_s + rng.expovariate(plan.requests_per_s)) < plan.seconds:
        is_poison = rng.random() < plan.poison_share
        length = rng.choice([4, 12, 40, 160])
        tokens = rng.choice([1, 8, 40, 120, 200])
        numbers = (rng.random(), rng.random() ** 2, rng.getrandbits(32), length, tokens, rng.random(), is_poison)
        steps.append(Step(round(now_s, 3), HARMLESS, numbers))
    return steps


def _faults(rng: random.Random, plan: Plan) -> list[Step]:
    steps, now_s = list[Step](), 5.0
    kinds = list(plan.faults)
    weights = [FAULTS[kind] for kind in kinds]
    while plan.faults_per_s and (now_s := now_s + rng.expovariate(plan.faults_per_s)) < plan.seconds:
        (kind,) = rng.choices(kinds, weights)
        lasts_s = rng.choice([0.5, 2.0, 6.0, 15.0])
        steps.append(Step(round(now_s, 3), kind, (rng.random(), rng.random(), lasts_s, rng.random())))
    return steps
