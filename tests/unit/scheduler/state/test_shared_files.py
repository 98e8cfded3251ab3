"""Two names of one file run in the same replica: neither loses what an operator wants of it because of the other."""

from dataclasses import replace

from scheduler.core.planning.candidates import Verdict
from scheduler.core.values.view import ModelFile
from tests.unit.scheduler.builders import cpu, gpu, model, node
from tests.unit.scheduler.keeping.test_scheduler_keeping import ONE_GPU, use
from tests.unit.scheduler.world import World, world_with

SHARED: tuple[ModelFile, ...] = (model("m:latest"), replace(model("copy:latest"), digest="digest-m"), model("n:latest"))


def loaded_as_m(*, gpus: int = 1, keep_alive_ms: int | None = None) -> World:
    """One replica, that was asked for as "m"."""
    devices = ONE_GPU if gpus == 1 else (*(gpu(f"g{number}") for number in range(gpus)), cpu(free=4, total=4))
    world = world_with(node(devices=devices, models=SHARED), m=16, n=16)
    world.ensure("first", "m", keep_alive_ms=keep_alive_ms)
    world.settle()
    use(world)
    return world


def test_a_replica_is_pinned_under_every_name_of_its_file() -> None:
    world = loaded_as_m(keep_alive_ms=1000)
    world.want("copy", pinned=True)
    world.pass_time(60)
    world.unload("u", "m")
    world.ensure("c", "n")
    world.settle()
    assert world.route() == ["p1"]
    assert world.fault("c").reason == "insufficient_memory"
    world.want("copy")
    world.ensure("d", "n")
    world.pass_time(3)
    world.settle()
    assert world.is_ready("d")


def test_an_explanation_says_pinned_whichever_name_is_pinned() -> None:
    world = loaded_as_m()
    world.want("copy", pinned=True)
    assert [one.pinned for one in world.explain("m").replicas] == [True]
    assert [one.pinned for one in world.explain("copy").replicas] == [True]
    world.ensure("c", "n")
    world.settle()
    short = [one.reason for one in world.explain("n").candidates if one.verdict is Verdict.SHORT_BYTES]
    assert any("m:latest is pinned" in one for one in short)
    assert not any("is kept" in one for one in short)


def test_what_is_kept_of_one_name_is_not_unloaded_or_expired_by_another() -> None:
    world = loaded_as_m(gpus=2, keep_alive_ms=1000)
    world.want("copy", replicas_min=2)
    world.pass_time(3)
    world.settle()
    assert len(world.route()) == 2
    world.unload("u", "m")
    world.pass_time(60)
    world.settle()
    assert len(world.route("copy:latest")) == 2
    assert len(world.all_starts) == 2, "none was loaded again"


def test_the_longest_keep_alive_that_is_set_for_a_name_counts() -> None:
    world = loaded_as_m()
    world.want("m", keep_alive=2)
    world.want("copy", keep_alive=60)
    world.pass_time(30)
    assert world.route() == ["p1"]
    world.pass_time(40)
    assert world.route() == []


def test_a_short_keep_alive_of_another_name_shortens_nothing() -> None:
    world = loaded_as_m()
    world.want("copy", keep_alive=2)
    world.pass_time(30)
    assert world.route() == ["p1"]


def test_the_highest_priority_of_a_name_decides_who_is_dearer() -> None:
    world = loaded_as_m(gpus=2)
    world.ensure("second", "n")
    world.settle()
    use(world, "n")
    world.pass_time(20)
    world.nodes = {"a": node("a", devices=world.nodes["a"].devices, models=(*SHARED, model("o:latest")))}
    world.sizes_gib["digest-o"] = 16.0
    world.report()
    world.want("copy", priority=2)
    world.ensure("c", "o")
    world.settle()
    world.pass_time(6)
    world.settle()
    assert world.is_ready("c")
    assert world.route("m:latest") != [], "the other one went"
