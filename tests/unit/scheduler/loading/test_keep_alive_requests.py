"""The newest of several keep_alives, and the start of its time: sent to the runner or to the scheduler."""

import pytest

from scheduler.core.state.effects import AnswerReady
from tests.unit.scheduler.builders import node
from tests.unit.scheduler.keeping.test_scheduler_keeping import loaded, use
from tests.unit.scheduler.world import World, world_with

MINUTES_5 = 300_000


def next_leader(world: World) -> None:
    """Another process leads, which knows what the store and the hosts say."""
    world.writes_done()
    world.restart_scheduler()
    world.report()
    world.lead()
    world.report()


def stays_s(world: World, at_most_s: int = 2000) -> int | None:
    """After how many seconds the idle replica goes; None: it stays."""
    for second in range(at_most_s):
        if not world.route():
            return second
        world.pass_time(1)
    return None


def asked_again_by_a_request() -> World:
    """Send the same keep_alive in two requests, and another one to the scheduler between them."""
    world = loaded()
    use(world, keep_alive_ms=MINUTES_5)
    world.ensure("load", keep_alive_ms=-1, load_only=True)
    world.report()
    use(world, keep_alive_ms=MINUTES_5)
    return world


def test_a_repeated_keep_alive_is_newer_than_one_that_the_scheduler_received_meanwhile() -> None:
    assert stays_s(asked_again_by_a_request()) == pytest.approx(300, abs=1)


def test_the_last_keep_alive_at_the_scheduler_counts_over_earlier_ones_at_the_runner() -> None:
    world = asked_again_by_a_request()
    world.ensure("again", keep_alive_ms=-1, load_only=True)
    use(world)
    assert stays_s(world) is None


def test_a_runner_that_does_not_count_is_believed_when_its_value_changes() -> None:
    world = loaded()
    world.runners["p1"].counts_keep_alive = False
    use(world, keep_alive_ms=MINUTES_5)
    world.ensure("load", keep_alive_ms=-1, load_only=True)
    use(world)
    world.pass_time(1000)
    assert world.route() == ["p1"]
    use(world, keep_alive_ms=60_000)
    assert stays_s(world) == pytest.approx(60, abs=1)


def test_the_next_leader_keeps_a_keep_alive_that_the_last_one_received_after_the_runner() -> None:
    world = loaded()
    use(world, keep_alive_ms=MINUTES_5)
    world.ensure("load", keep_alive_ms=-1, load_only=True)
    next_leader(world)
    assert stays_s(world) is None


def test_the_next_leader_takes_a_keep_alive_that_the_runner_received_after_the_last_leader() -> None:
    world = asked_again_by_a_request()
    next_leader(world)
    assert stays_s(world) == pytest.approx(300, abs=1)


def test_the_next_leader_takes_the_keep_alive_of_the_runner_if_no_leader_received_one() -> None:
    world = loaded()
    use(world, keep_alive_ms=60_000)
    next_leader(world)
    assert stays_s(world) == pytest.approx(60, abs=1)


def test_a_leader_that_leads_again_takes_the_newer_keep_alive_that_another_one_wrote() -> None:
    world = loaded(keep_alive_ms=-1)
    first = world.core
    world.lose_leadership()
    next_leader(world)
    use(world, keep_alive_ms=MINUTES_5)
    world.ensure("load", keep_alive_ms=60_000, load_only=True)
    world.writes_done()
    world.core = first
    world.report()
    world.lead()
    assert stays_s(world) == pytest.approx(60, abs=1)


def test_a_repeated_keep_alive_after_a_newer_request_is_written_for_the_next_leader() -> None:
    world = loaded(keep_alive_ms=-1)
    use(world, keep_alive_ms=MINUTES_5)
    world.ensure("load", keep_alive_ms=-1, load_only=True)
    next_leader(world)
    assert stays_s(world) is None


def test_the_keep_alive_of_waiting_callers_holds_for_a_replica_that_appears_by_itself() -> None:
    world = loaded()
    world.lose_leadership()
    hidden = world.runners.pop("p1")
    world.report()
    world.restart_scheduler()
    world.nodes["a"] = node()
    world.report()
    world.lead()
    world.ensure("c", keep_alive_ms=-1, load_only=True)
    assert world.finals("c") == []
    world.runners["p1"] = hidden
    world.report()
    assert world.is_ready("c")
    assert stays_s(world) is None


def test_nobody_is_waited_for_after_a_load_that_no_request_follows() -> None:
    world = world_with(node())
    world.ensure("c", keep_alive_ms=3_000, load_only=True)
    world.settle()
    assert world.is_ready("c")
    assert stays_s(world) == 3


def test_a_load_that_no_request_follows_renews_a_warm_replica_for_exactly_as_long() -> None:
    world = loaded()
    world.pass_time(100)
    world.ensure("c", keep_alive_ms=4_000, load_only=True)
    assert world.is_ready("c")
    assert stays_s(world) == 4


def test_a_load_that_no_request_follows_and_says_nothing_starts_the_time_anew() -> None:
    world = loaded()
    world.pass_time(200)
    world.ensure("c", load_only=True)
    assert stays_s(world) == pytest.approx(300, abs=1)


@pytest.mark.parametrize("request_first", [True, False])
def test_a_load_that_a_request_waits_for_too_waits_for_the_request(*, request_first: bool) -> None:
    world = world_with(node())
    world.ensure("c1", keep_alive_ms=1_000, load_only=not request_first)
    world.ensure("c2", keep_alive_ms=1_000, load_only=request_first)
    world.settle()
    assert stays_s(world) == pytest.approx(10, abs=1)


def test_a_load_that_is_to_go_at_once_is_answered() -> None:
    world = world_with(node())
    world.ensure("c", keep_alive_ms=0, load_only=True)
    world.settle()
    assert [type(one) for one in world.finals("c")] == [AnswerReady]
    assert world.runners == {}
