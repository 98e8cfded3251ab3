"""Number of a model's replicas: kept, loaded ahead, added under demand, and protected."""

from scheduler.core.state.events import QueuesReported
from scheduler.core.values.policy import Policy
from tests.unit.scheduler.builders import cpu, node
from tests.unit.scheduler.constraint_commands import TWO_GPUS
from tests.unit.scheduler.keeping.test_scheduler_keeping import ONE_GPU, loaded, use
from tests.unit.scheduler.world import World, models, world_with


def test_replicas_min_are_kept_and_come_back_after_a_node_is_lost() -> None:
    world = world_with(node("a"), node("b"), node("c"))
    world.want("m", replicas_min=2, keep_alive=1)
    for _ in range(4):
        world.settle()
        world.pass_time(2)
    assert len(world.route()) == 2
    world.pass_time(120)
    assert len(world.route()) == 2
    lost = next(iter(world.runners.values())).node_id
    del world.nodes[lost]
    world.runners = {key: one for key, one in world.runners.items() if one.node_id != lost}
    world.cut_off.add(lost)
    world.pass_time(10)
    world.settle()
    assert len(world.route()) == 2
    assert lost not in {one.node_id for one in world.runners.values()}


def test_only_the_replicas_above_replicas_min_expire() -> None:
    world = world_with(node("a"), node("b"), node("c"))
    world.want("m", replicas_min=3)
    for _ in range(6):
        world.settle()
        world.pass_time(1)
    assert len(world.route()) == 3
    world.want("m", replicas_min=1, keep_alive=5)
    world.pass_time(20)
    world.settle()
    assert len(world.route()) == 1


def test_a_preload_is_loaded_once_and_not_again_after_it_has_expired() -> None:
    world = world_with(node())
    world.want("m", preload=True, keep_alive=30)
    world.report()
    world.settle()
    assert len(world.route()) == 1
    world.pass_time(60)
    world.settle()
    assert world.runners == {}
    assert len(world.all_starts) == 1


def test_a_young_discovery_preloads_nothing_because_it_may_not_know_everybody() -> None:
    world = world_with(node())
    world.uptime_s = 1.0
    world.report()
    world.want("m", preload=True)
    world.report()
    assert world.measures == []
    world.uptime_s = 60.0
    world.report()
    assert world.measures != []


def test_a_kept_model_that_cannot_be_loaded_is_tried_again_with_pauses() -> None:
    world = world_with(node(devices=(cpu(free=4, total=4),)), m=50)
    world.want("m", replicas_min=1)
    for _ in range(30):
        world.pass_time(1)
        world.measure_all()
    assert 2 <= len(world.noted("model.load_failed")) <= 7, "after half a second, one, two, four..."
    world.ensure("c")
    world.measure_all()
    assert world.fault("c").reason == "insufficient_memory", "whoever asks is told at once"
    world.sizes_gib["digest-m"] = 1
    world.core.state.reports.clear()
    world.nodes = {"a": node(devices=(cpu(free=64, total=64),))}
    for _ in range(40):
        world.pass_time(1)
        world.settle()
    assert len(world.route()) == 1
    before = len(world.noted("model.load_requested"))
    world.runner_dies(world.route()[0])
    world.pass_time(1)
    assert len(world.noted("model.load_requested")) == before + 1, "since it served, it is not waited for again"


def test_priority_protects_a_model_and_recent_demand_does_too() -> None:
    world = world_with(node(devices=TWO_GPUS, models=models("m", "n", "o")), m=16, n=16, o=16)
    for name in ("m", "n"):
        loaded(name, world=world)
    for _ in range(5):
        world.pass_time(6)
        use(world, "m")
    world.pass_time(15)
    world.ensure("c", "o")
    world.settle()
    assert world.route("n:latest") == []  # asked less often
    assert len(world.route("m:latest")) == 1
    use(world, "o")
    world.pass_time(30)
    world.want("o", priority=2)
    world.ensure("d", "n")
    world.settle()
    assert world.route("m:latest") == []
    assert len(world.route("o:latest")) == 1


def waits(world: World, seconds: float, *, wait_s: float = 6.0) -> None:
    """A gateway tells once a second that a request of m waits so long."""
    for _ in range(round(seconds)):
        world.send(QueuesReported(gateway_id="g", waits_s={"m:latest": wait_s}))
        world.pass_time(1)


def scaled(*nodes: str, replicas_max: int = 2) -> World:
    world = loaded(world=world_with(*(node(name, devices=ONE_GPU) for name in nodes), m=16))
    world.want("m", replicas_max=replicas_max)
    world.work("p1", busy=1)
    world.report()
    return world


def test_requests_that_wait_too_long_bring_one_replica_more_where_there_is_room() -> None:
    world = scaled("a", "b")
    waits(world, 14)
    assert len(world.all_starts) == 1
    waits(world, 3)
    world.settle()
    assert len(world.route()) == 2
    waits(world, 40)
    world.settle()
    assert len(world.route()) == 2  # replicas_max


def test_short_waits_and_waits_that_end_bring_none() -> None:
    world = scaled("a", "b")
    waits(world, 40, wait_s=4.0)
    waits(world, 10)
    world.send(QueuesReported(gateway_id="g", waits_s={}))
    waits(world, 10)
    assert len(world.all_starts) == 1


def test_a_gateway_that_fell_silent_is_not_believed() -> None:
    world = scaled("a", "b")
    waits(world, 1)
    world.pass_time(60)
    assert len(world.all_starts) == 1


def test_no_model_is_evicted_for_one_replica_more() -> None:
    world = world_with(node("a", devices=ONE_GPU), node("b", devices=ONE_GPU, models=models("m", "n")), m=16, n=16)
    loaded("n", world=world)
    loaded("m", world=world)
    world.want("m", replicas_max=2)
    (mine,) = world.route("m:latest")
    world.work(mine, busy=1)
    world.pass_time(30)
    waits(world, 60)
    world.settle()
    assert len(world.route("m:latest")) == 1
    assert len(world.route("n:latest")) == 1


def test_an_additional_replica_goes_by_its_own_keep_alive() -> None:
    world = scaled("a", "b")
    waits(world, 17)
    world.settle()
    (extra,) = [one for one in world.route() if one != "p1"]
    world.work(extra, busy=1)
    world.report()
    world.work(extra, busy=0)
    world.pass_time(301)
    world.settle()
    assert world.route() == ["p1"]  # busy all the time


def test_at_most_so_many_replicas_of_a_node_are_loaded_where_an_operator_says_so() -> None:
    world = World(policy=Policy(loaded_models_max=1))
    world.sizes_gib = {"digest-m": 1, "digest-n": 1}
    world.nodes = {"a": node("a", models=models("m", "n"))}
    world.report()
    world.lead()
    loaded("m", world=world)
    world.pass_time(20)
    world.ensure("c", "n")
    world.settle()
    assert world.is_ready("c")
    assert len(world.runners) == 1
