"""Candidates for eviction, as derived from the state: suspect nodes, loads on their way, failed stops, host RAM."""

from dataclasses import replace

from scheduler.core.room.evictable import evictable, pool_bytes, spare_replicas
from scheduler.core.state.cluster_state import NO_FAILURES, LoadFailures, StopState
from scheduler.core.state.events import StopEnded
from scheduler.core.state.load_jobs import LoadJob, LoadTarget
from scheduler.core.stopping.stopping import STOP_RETRY_S
from scheduler.core.values.asked import NOTHING_ASKED
from scheduler.core.values.constraints import NO_CONSTRAINTS
from scheduler.core.values.faults import Fault
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.keeping.test_scheduler_keeping import loaded
from tests.unit.scheduler.world import World, models, world_with

NAMES = models("m", "n", "o")


def served() -> World:
    """m lies on a GPU, idle for a while."""
    world = world_with(node("a", devices=(gpu(), cpu()), models=NAMES), m=16, n=16, o=16)
    loaded(world=world)
    world.pass_time(20)
    return world


def job_of(world: World, name: str = "o") -> LoadJob:
    """A load that nobody has begun."""
    return LoadJob(
        id=99,
        model_name=f"{name}:latest",
        model_digest=f"digest-{name}",
        target=LoadTarget(asked=NOTHING_ASKED, context_tokens=4096, constraints=NO_CONSTRAINTS),
        keep_alive_ms=None,
        is_extra=False,
        created_s=world.now_s,
        moved_s=world.now_s,
    )


def spare(world: World) -> list[str]:
    found = spare_replicas(world.core.state, job_of(world), world.now_s)
    return [runner.placement_id for _, runner, _ in found]


def leaving(world: World) -> list[str]:
    return [one.placement_id for one in evictable(world.core.state, job_of(world), world.now_s)]


def freed(world: World) -> set[str]:
    (found,) = world.core.state.observed.replicas()
    return {pool for _, pool in pool_bytes(world.core.state, *found)}


def test_what_lies_on_a_suspect_node_is_not_spare() -> None:
    world = served()
    assert spare(world) == ["p1"]
    world.nodes["a"] = replace(world.nodes["a"], suspect=True)
    world.report()
    assert world.core.state.observed.replica("p1") is not None, "it is still there"
    assert spare(world) == []


def test_what_a_load_has_not_handed_over_is_not_spare() -> None:
    world = served()
    job = job_of(world, "m")
    job.record = world.core.state.desired["p1"]
    world.core.state.jobs[job.id] = job
    assert spare(world) == []
    del world.core.state.jobs[job.id]
    assert spare(world) == ["p1"]


def test_a_stop_that_failed_once_is_counted_on_by_nobody_while_it_is_tried_again() -> None:
    world = served()
    world.unload("u", "m")
    world.writes_done()
    assert leaving(world) == ["p1"]
    (stop,) = world.stops
    stuck = Fault(reason="unavailable", message="it does not end")
    world.send(StopEnded(placement_id=stop.placement_id, generation=stop.generation, fault=stuck))
    assert leaving(world) == []
    world.pass_time(STOP_RETRY_S + 1)
    world.writes_done()
    assert world.core.state.stops["p1"].state is StopState.COMMANDED, "its host is asked again"
    assert leaving(world) == []


def test_host_ram_counts_only_where_most_of_a_replica_lies_there() -> None:
    world = served()
    assert freed(world) == {"gpu-0"}
    world = world_with(node("a", devices=(cpu(),), models=NAMES), m=16)
    loaded(world=world)
    assert freed(world) == {"host"}


def test_who_was_served_again_is_not_waited_for_because_of_what_failed_before() -> None:
    world = served()
    world.want("m", replicas_min=1)
    model = world.core.state.models["digest-m"]
    model.keep_failures = LoadFailures(count=9, until_s=world.now_s + 600)
    world.pass_time(1)
    assert model.keep_failures == NO_FAILURES
    world.runner_dies("p1")
    world.pass_time(1)
    world.settle()
    assert len(world.route()) == 1
