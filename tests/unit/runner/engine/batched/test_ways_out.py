"""However a sequence ends, its slot is free again, once, and its neighbours go on."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from common.errors import InvalidRequest, PunaError
from runner.engine.contract.engine import Ended, Freed
from tests.unit.runner.simulated_context import VOCABULARY, Simulation

FAILURES = 110
SLOTS = 3


class FailingSampler:
    """A sampler that fails after some tokens."""

    def __init__(self, sampler: Any, after: int) -> None:
        self._sampler = sampler
        self._left = after
        self.closed = 0

    def sample(self, *arguments: Any) -> int:
        if self._left == 0:
            raise InvalidRequest("injected")
        self._left -= 1
        token: int = self._sampler.sample(*arguments)
        return token

    def close(self) -> None:
        self.closed += 1
        self._sampler.close()


class World:
    """A simulation in which one sequence after the other comes to harm."""

    def __init__(self) -> None:
        self.simulation = Simulation(cells=600, slots=SLOTS, slot_tokens=200, batch_tokens=16)
        self.random = random.Random(46)
        self.samplers: list[FailingSampler] = []
        self.expected: Counter[str] = Counter()

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.simulation.turn()

    def prompt(self, length: int) -> list[int]:
        return [self.random.randrange(VOCABULARY) for _ in range(length)]

    def refuse(self) -> None:
        with pytest.raises(PunaError):
            self.simulation.submit(self.prompt(300), truncate=False)

    def leave_while_waiting(self) -> None:
        for _ in range(SLOTS):
            self.simulation.submit(self.prompt(5), max_tokens=3)
        self.simulation.loop.cancel(self.simulation.submit(self.prompt(5)))

    def leave_in_the_prompt(self) -> None:
        doomed = self.simulation.submit(self.prompt(100), max_tokens=5)
        self.turns(2)
        self.simulation.loop.cancel(doomed)

    def leave_while_generating(self) -> None:
        doomed = self.simulation.submit(self.prompt(4), max_tokens=100)
        self.turns(self.random.randrange(3, 9))
        self.simulation.loop.cancel(doomed)

    def stop_string(self) -> None:
        doomed = self.simulation.submit(self.prompt(4), max_tokens=100)
        self.turns(8)
        self.simulation.loop.cut(doomed, 2)

    def fail_to_sample(self) -> None:
        doomed = self.simulation.submit(self.prompt(4), max_tokens=100)
        self.turns(1)
        sequence = self.simulation.loop._find(doomed)
        if sequence is not None:
            sampler: Any = FailingSampler(sequence.sampler, after=self.random.randrange(3))
            sequence.sampler = sampler
            self.samplers.append(sampler)
            self.expected["failed"] += 1

    def fill_the_context(self) -> None:
        self.simulation.submit(self.prompt(190), max_tokens=50, shift=False)
        self.expected["full"] += 1

    def generate_nothing(self) -> None:
        self.simulation.submit(self.prompt(3), max_tokens=0)


WAYS: tuple[Callable[[World], None], ...] = (
    World.refuse,
    World.leave_while_waiting,
    World.leave_in_the_prompt,
    World.leave_while_generating,
    World.stop_string,
    World.fail_to_sample,
    World.fill_the_context,
    World.generate_nothing,
)


@pytest.mark.behaviour("B-46")
def test_a_hundred_failures_of_every_kind_leave_every_slot_free_and_hurt_no_neighbour() -> None:
    world = World()
    simulation = world.simulation
    for number in range(FAILURES):
        neighbour = simulation.submit([number % VOCABULARY], max_tokens=6)
        WAYS[number % len(WAYS)](world)
        simulation.run()
        assert simulation.table.busy == 0
        said = simulation.recorder.tokens(neighbour)
        assert said == [(number + 1 + index) % VOCABULARY for index in range(6)]
    submitted = simulation._ids
    freed = Counter(outcome.sequence_id for outcome in simulation.recorder.outcomes if isinstance(outcome, Freed))
    refused = sum(WAYS[number % len(WAYS)] is World.refuse for number in range(FAILURES))
    assert set(freed.values()) == {1}
    assert len(freed) == submitted - refused
    assert len(simulation.recorder.failures()) == world.expected["failed"] > FAILURES // 10
    full = [outcome for outcome in simulation.recorder.outcomes if isinstance(outcome, Ended)]
    assert len(full) >= world.expected["full"]
    assert {sampler.closed for sampler in world.samplers} == {1}
    # Every slot serves again.
    last = [simulation.submit([start], max_tokens=2) for start in range(SLOTS)]
    world.turns(1)
    assert simulation.table.busy == SLOTS
    simulation.run()
    assert [len(simulation.recorder.tokens(one)) for one in last] == [2] * SLOTS
