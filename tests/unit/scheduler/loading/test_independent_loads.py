"""A load that stands still, in each state in which a load can: others take as long as without it, to the tick.

Measurements, writes, starts and loads take ticks of a clock. Those of one model stand still in one state until they are
let go; who leaves meanwhile changes nothing. Both loads are on one node, on a device each. Only a measurement that
hangs keeps others from measuring on its node, until its host ends it; there the other load is on another node.
"""

from dataclasses import dataclass, field

import pytest

from scheduler.core.state.effects import Measure, SaveDesired, StartRunner
from scheduler.core.state.load_jobs import LoadState
from scheduler.core.values.view import STARTING_STATES
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models, world_with

TICK_S = 0.5
TICKS_MAX = 100
LOAD_TICKS = 6
STATES = (LoadState.MEASURING, LoadState.PLANNED, LoadState.STARTING, LoadState.LOADING)


@dataclass(slots=True)
class Ticking:
    """A world in which everything takes its time, and one state of the model `stuck` takes for ever."""

    stuck_in: LoadState | None
    apart: bool
    world: World = field(init=False)
    _ticks: dict[str, int] = field(default_factory=dict)  # since the process of a placement began to load

    def __post_init__(self) -> None:
        devices = (gpu("gpu-0"), gpu("gpu-1", free=20), cpu(free=4, total=4))
        on_a = ("stuck",) if self.apart else ("stuck", "other")
        self.world = world_with(
            node("a", devices=devices, models=models(*on_a)),
            node("b", devices=(gpu("gpu-2", free=18), cpu(free=4, total=4)), models=models("other")),
            stuck=16,
            other=16,
        )

    def until_ready(self, caller: str) -> float:
        """Seconds from now until the caller has a model that serves."""
        begun_s = self.world.now_s
        for _ in range(TICKS_MAX):
            if self.world.is_ready(caller):
                return self.world.now_s - begun_s
            self.tick()
        raise AssertionError(f"{caller} waits for ever")

    def state(self) -> LoadState | None:
        """Of the load of `stuck`."""
        jobs = self.world.core.state.jobs.values()
        return next((job.state for job in jobs if job.model_name == "stuck:latest"), None)

    def tick(self) -> None:
        world = self.world
        measures = [one for one in world.measures if self._stands_still(one)]
        writes = [one for one in world.writes if self._stands_still(one)]
        starts = [one for one in world.starts if self._stands_still(one)]
        world.measures = [one for one in world.measures if one not in measures]
        world.writes = [one for one in world.writes if one not in writes]
        world.starts = [one for one in world.starts if one not in starts]
        world.hosts_take_starts()
        world.writes_done()
        world.measure_all()
        world.measures += measures
        world.writes += writes
        world.starts += starts
        for key, one in list(world.runners.items()):
            is_held = self.stuck_in is LoadState.LOADING and one.view.model_name == "stuck:latest"
            if one.view.state in STARTING_STATES and not is_held:
                self._ticks[key] = self._ticks.get(key, 0) + 1
                world.load(key, self._ticks[key] / LOAD_TICKS)
        world.now_s += TICK_S
        world.report()

    def _stands_still(self, effect: object) -> bool:
        match effect:
            case Measure():
                return self.stuck_in is LoadState.MEASURING and effect.key.model_digest == "digest-stuck"
            case SaveDesired():
                return self.stuck_in is LoadState.PLANNED and effect.record.model_name == "stuck:latest"
            case StartRunner():
                return self.stuck_in is LoadState.STARTING and effect.record.model_name == "stuck:latest"
            case _:
                return False


@pytest.mark.behaviour("B-133", "B-135")
@pytest.mark.parametrize("stuck_in", STATES)
def test_a_load_takes_as_long_beside_one_that_stands_still_as_alone(stuck_in: LoadState) -> None:
    apart = stuck_in is LoadState.MEASURING
    alone = Ticking(None, apart)
    alone.world.ensure("c", "other")
    alone_s = alone.until_ready("c")
    beside = Ticking(stuck_in, apart)
    for caller in ("stays", "leaves"):
        beside.world.ensure(caller, "stuck")
    for _ in range(TICKS_MAX):
        if beside.state() is stuck_in:
            break
        beside.tick()
    assert beside.state() is stuck_in
    beside.world.ensure("c", "other")
    assert beside.until_ready("c") == alone_s
    assert beside.state() is stuck_in
    where = {one.view.model_name: one.node_id for one in beside.world.runners.values()}
    assert where["other:latest"] == ("b" if apart else "a")
    beside.world.leave("leaves")
    beside.stuck_in = None
    beside.until_ready("stays")
    assert beside.world.finals("leaves") == []
    assert len(beside.world.finals("stays")) == len(beside.world.finals("c")) == 1
    assert len(beside.world.all_starts) == len({one.record.placement_id for one in beside.world.all_starts}) == 2
    assert beside.world.core.state.waiters() == 0
