"""Belief about hosts: lost nodes, probed runners, reported starts and the end of their validity."""

from dataclasses import replace

import pytest

from scheduler.core.state.observed import CHANGES_S, DAMPED_S, INVENTORY_SILENT_S, START_SEEN_S, Observed
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import RunnerState
from tests.unit.scheduler.builders import node, runner

POLICY = Policy()
UP_S = 1000.0
READY = runner("p1")


def seen(*runners: RunnerState | None, now_s: float = 0.0) -> Observed:
    """One node with runners in these states."""
    observed = Observed(policy=POLICY)
    shown = tuple(runner(f"p{index}", state=state) for index, state in enumerate(runners, 1) if state is not None)
    observed.see_inventory((node(runners=shown),), UP_S, now_s)
    return observed


def leave(observed: Observed, now_s: float) -> None:
    observed.see_inventory((), UP_S, now_s)


def come_back(observed: Observed, now_s: float) -> None:
    observed.see_inventory((node(runners=(READY,)),), UP_S, now_s)


def asked(observed: Observed, now_s: float) -> list[str]:
    return [one.placement_id for _, one in observed.runners_to_ask(now_s)]


def test_a_removed_node_is_dropped_at_once_although_its_runners_answer() -> None:
    observed = seen(RunnerState.READY)
    leave(observed, 1)
    observed.hear("p1", 1, 2)
    observed.see_inventory((), UP_S, 3, removed=frozenset({"a"}))
    assert generation(observed) is None
    assert asked(observed, 100) == []


def generation(observed: Observed) -> int | None:
    found = observed.replica("p1")
    assert [one.generation for _, one in observed.replicas()] == ([] if found is None else [found[1].generation])
    return None if found is None else found[1].generation


def test_a_node_that_is_back_was_away_no_longer() -> None:
    observed = seen(RunnerState.READY)
    leave(observed, 1)
    come_back(observed, 2)
    observed.expire(1 + 2 * POLICY.node_lost_s)
    assert observed.is_current("a")


def be_silent(observed: Observed, now_s: float) -> None:
    observed.see_inventory((node(runners=(READY,), suspect=True),), UP_S, now_s)


def test_a_suspect_node_whose_runners_do_not_answer_is_given_up_until_it_reports() -> None:
    observed = seen(RunnerState.READY)
    be_silent(observed, 1)
    assert asked(observed, 1 + POLICY.runner_asked_s) == ["p1"]
    be_silent(observed, 1 + POLICY.node_lost_s / 2)
    assert generation(observed) == 1
    observed.expire(1 + POLICY.node_lost_s)
    assert generation(observed) is None
    assert "a" not in observed.nodes
    be_silent(observed, 2 + POLICY.node_lost_s)
    assert generation(observed) is None
    come_back(observed, 3 + POLICY.node_lost_s)
    assert generation(observed) == 1
    assert observed.is_current("a")


def test_a_suspect_node_whose_runners_answer_stays() -> None:
    observed = seen(RunnerState.READY)
    be_silent(observed, 1)
    observed.hear("p1", 1, POLICY.node_lost_s)
    be_silent(observed, 1 + POLICY.node_lost_s)
    assert generation(observed) == 1


def test_a_node_that_leaves_again_is_asked_as_if_for_the_first_time() -> None:
    observed = seen(RunnerState.READY)
    for left_s in (1.0, 101.0):
        leave(observed, left_s)
        assert asked(observed, left_s + POLICY.runner_asked_s - 0.01) == []
        assert asked(observed, left_s + POLICY.runner_asked_s) == ["p1"]
        come_back(observed, left_s + 2)


def test_a_node_that_was_given_up_and_comes_and_goes_is_asked_as_if_for_the_first_time() -> None:
    observed = seen(RunnerState.READY)
    leave(observed, 1)
    assert asked(observed, 3) == ["p1"]
    leave(observed, 1 + POLICY.node_lost_s)
    assert observed.nodes == {}
    come_back(observed, 10)
    leave(observed, 20)
    assert asked(observed, 20) == []


def test_only_who_serves_is_asked() -> None:
    observed = seen(RunnerState.READY, RunnerState.LOADING, RunnerState.ERROR)
    leave(observed, 1)
    assert asked(observed, 1 + POLICY.runner_asked_s) == ["p1"]


def test_a_frozen_view_asks_nobody_and_gives_nobody_up() -> None:
    observed = seen(RunnerState.READY)
    leave(observed, 1)
    observed.lose_inventory(2)
    assert asked(observed, 100) == []
    observed.expire(100)
    assert generation(observed) == 1


def test_a_view_is_frozen_since_the_watch_broke_first() -> None:
    observed = seen(RunnerState.READY)
    observed.lose_inventory(2)
    observed.lose_inventory(9)
    assert observed.frozen_since_s == 2
    (aged,) = observed.node_views(12)
    assert aged.report_age_s == pytest.approx(10)


def test_a_start_of_a_node_that_left_is_not_contradicted_by_its_silence() -> None:
    observed = seen(None)
    observed.see_start("a", READY, 1)
    leave(observed, 2)
    observed.hear("p1", 1, 2)
    leave(observed, 1 + START_SEEN_S)
    assert generation(observed) == 1


@pytest.mark.parametrize("comes", [True, False])
def test_a_start_that_no_inventory_shows_is_forgotten_in_time(comes: bool) -> None:
    observed = seen(None)
    observed.see_start("a", READY, 1)
    until_s = 1 + START_SEEN_S + (0 if comes else INVENTORY_SILENT_S)
    for now_s in (until_s - 0.01, until_s):
        if comes:
            observed.see_inventory((node(),), UP_S, now_s)
        else:
            observed.expire(now_s)
        assert generation(observed) == (1 if now_s < until_s else None)


def test_of_two_generations_the_newer_one_counts_whoever_tells_of_it() -> None:
    observed = seen(RunnerState.READY)
    observed.see_start("a", replace(READY, generation=2), 1)
    assert generation(observed) == 2
    observed.see_inventory((node(runners=(replace(READY, generation=3),)),), UP_S, 2)
    assert generation(observed) == 3


def test_a_newer_generation_that_still_loads_is_not_hidden_by_an_older_one_that_served() -> None:
    observed = seen(None)
    observed.see_start("a", READY, 1)
    newer = replace(READY, generation=2, state=RunnerState.LOADING)
    observed.see_inventory((node(runners=(newer,)),), UP_S, 2)
    assert generation(observed) == 2


def test_a_start_on_a_node_that_nobody_knows_is_not_shown() -> None:
    observed = seen(None)
    observed.see_start("elsewhere", READY, 1)
    assert generation(observed) is None


def test_the_end_of_an_older_generation_says_nothing_about_the_start_of_a_newer_one() -> None:
    observed = seen(RunnerState.READY)
    observed.see_start("a", replace(READY, generation=2), 1)
    observed.see_inventory((node(),), UP_S, 2)
    assert generation(observed) == 2


def test_an_inventory_that_shows_a_start_still_on_its_way_is_behind_what_its_host_reported() -> None:
    observed = seen(RunnerState.LOADING)
    observed.see_start("a", READY, 1)
    observed.see_inventory((node(runners=(replace(READY, state=RunnerState.LOADING),)),), UP_S, 2)
    found = observed.replica("p1")
    assert found is not None
    assert found[1].state is RunnerState.READY


def flap(observed: Observed, times: int, begin_s: float, every_s: float = 4.0) -> float:
    """Let the node go and come so many times; return when it was back."""
    for number in range(times):
        leave(observed, begin_s + every_s * number)
        come_back(observed, begin_s + every_s * number + 2)
    return begin_s + every_s * (times - 1) + 2


def is_damped(observed: Observed, now_s: float) -> bool:
    come_back(observed, now_s)
    return observed.nodes["a"].is_damped


def test_a_node_that_comes_and_goes_is_damped_until_it_has_stayed_for_half_a_minute() -> None:
    observed = seen(RunnerState.READY)
    once_s = flap(observed, 1, 1)
    assert not is_damped(observed, once_s)
    back_s = flap(observed, 1, once_s + 1)
    assert is_damped(observed, back_s)
    assert observed.is_current("a")
    assert generation(observed) == 1, "what runs there serves"
    assert is_damped(observed, back_s + DAMPED_S - 0.1)
    assert not is_damped(observed, back_s + DAMPED_S)


def test_a_suspect_node_that_reports_again_has_changed_twice() -> None:
    observed = seen(RunnerState.READY)
    for now_s in (1.0, 5.0):
        be_silent(observed, now_s)
        come_back(observed, now_s + 2)
    assert is_damped(observed, 7.5)


def test_a_node_that_changes_seldom_or_whose_discovery_is_young_is_not_damped() -> None:
    observed = seen(RunnerState.READY)
    assert not is_damped(observed, flap(observed, 5, 1, every_s=CHANGES_S))
    young = seen(RunnerState.READY)
    for now_s in (1.0, 3.0, 5.0):
        young.see_inventory((), 1.0, now_s)
        young.see_inventory((node(runners=(READY,)),), 2.0, now_s + 1)
    young.see_inventory((node(runners=(READY,)),), UP_S, 7.0)
    assert not young.nodes["a"].is_damped


def test_a_removed_node_that_comes_back_has_no_past() -> None:
    observed = seen(RunnerState.READY)
    flap(observed, 2, 1)
    observed.see_inventory((), UP_S, 10, removed=frozenset({"a"}))
    come_back(observed, 11)
    assert not is_damped(observed, 12)
