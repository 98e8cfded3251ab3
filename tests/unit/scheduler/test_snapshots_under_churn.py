"""Snapshots belong to one moment, and stay unchanged whatever happens meanwhile."""

import copy
from dataclasses import dataclass, field

import pytest

from scheduler.core.state.effects import AnswerExplained
from scheduler.core.state.events import ExplainAsked
from scheduler.core.values.routing_table import SHOWN_STATES
from tests.simulation.test_random_events import Chaos, CheckedWorld

SEEDS = (21, 22)
EVENTS = 1_500
KEPT_EVERY = 50  # events


@dataclass(slots=True)
class WatchedWorld(CheckedWorld):
    """After every event the table of routes is held against what the core sees at that moment."""

    kept: list[tuple[object, object]] = field(default_factory=list)  # what was shown, and what it said then
    replicas_shown: int = 0

    def restart_scheduler(self, prefix: str = "q") -> None:
        CheckedWorld.restart_scheduler(self, prefix)
        self.routes = ()
        self.routes_versions.clear()

    def check(self) -> None:
        CheckedWorld.check(self)
        self.check_routes()
        if self.events % KEPT_EVERY == 0:
            self.keep(self.routes)
            for effect in self.core.handle(ExplainAsked(caller_id="why", model_name="a", last=True), self.now_s):
                if isinstance(effect, AnswerExplained):
                    self.keep(effect.explanation)

    def check_routes(self) -> None:
        """Every replica once, as it is seen, and none that goes; a version for each table."""
        state = self.core.state
        seen = {runner.placement_id: (node_id, runner) for node_id, runner in state.observed.replicas()}
        shown = [(route.model, replica) for route in self.routes for replica in route.replicas]
        where = f"seed {self.seed}, event {self.events}"
        for model, replica in shown:
            node_id, runner = seen[replica.runner.placement_id]
            assert replica.node_id == node_id, where
            assert (replica.runner.generation, replica.runner.state) == (runner.generation, runner.state), where
            assert replica.runner.layout == runner.layout, where
            assert replica.runner.is_busy == runner.is_busy, where
            assert model.digest == runner.model_digest, where
            assert runner.state in SHOWN_STATES, where
            assert runner.placement_id not in state.stops, where
        assert len({replica.runner.placement_id for _, replica in shown}) == len(shown), where
        serving = {name for name, (_, one) in seen.items() if one.state in SHOWN_STATES and name not in state.stops}
        known = {file.digest for node in state.observed.nodes.values() for file in node.models}
        here = {name for name in serving if seen[name][1].model_digest in known}
        assert here == {replica.runner.placement_id for _, replica in shown}, where
        assert self.routes_versions == sorted(set(self.routes_versions)), where
        self.replicas_shown += len(shown)

    def keep(self, shown: object) -> None:
        self.kept.append((shown, copy.deepcopy(shown)))


@pytest.mark.behaviour("B-139")
@pytest.mark.parametrize("seed", SEEDS)
def test_routes_are_those_of_one_moment_after_every_event_and_change_no_more(seed: int) -> None:
    chaos = Chaos(seed=seed, world_type=WatchedWorld)
    chaos.run(EVENTS)
    world = chaos.world
    assert isinstance(world, WatchedWorld)
    assert world.replicas_shown > EVENTS / 2
    assert len(world.kept) > EVENTS / KEPT_EVERY
    for shown, said in world.kept:
        assert shown == said
