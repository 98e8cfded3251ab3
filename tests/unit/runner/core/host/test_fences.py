"""Fences of commands to a host."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import StaleFence, StartupError
from runner.core.host.fences import NO_FENCE, Fence, is_accepted
from runner.host.fence_store import FenceStore

fences = st.builds(Fence, number=st.integers(0, 5), leader_id=st.sampled_from("ab"))


def test_a_higher_fence_is_obeyed() -> None:
    assert is_accepted(Fence(number=2, leader_id="b"), highest=Fence(number=1, leader_id="a"))


def test_the_same_fence_is_obeyed_from_the_same_leader_only() -> None:
    highest = Fence(number=2, leader_id="a")
    assert is_accepted(highest, highest=highest)
    assert not is_accepted(Fence(number=2, leader_id="b"), highest=highest)


def test_a_lower_fence_is_refused() -> None:
    assert not is_accepted(Fence(number=1, leader_id="a"), highest=Fence(number=2, leader_id="a"))


def test_no_fence_at_all_is_refused() -> None:
    assert not is_accepted(NO_FENCE, highest=NO_FENCE)


@given(st.lists(fences))
def test_two_leaders_are_never_obeyed_under_one_number(commands: list[Fence]) -> None:
    highest, leaders = NO_FENCE, dict[int, str]()
    for fence in commands:
        if is_accepted(fence, highest=highest):
            assert fence.number >= highest.number
            assert leaders.setdefault(fence.number, fence.leader_id) == fence.leader_id
            highest = fence


def test_the_highest_fence_survives_a_restart(tmp_path: Path) -> None:
    FenceStore(tmp_path / "fence.json").accept(Fence(number=7, leader_id="a"))
    restarted = FenceStore(tmp_path / "fence.json")
    assert restarted.highest == Fence(number=7, leader_id="a")
    with pytest.raises(StaleFence):
        restarted.accept(Fence(number=6, leader_id="a"))


def test_a_refused_fence_changes_nothing(tmp_path: Path) -> None:
    store = FenceStore(tmp_path / "fence.json")
    store.accept(Fence(number=7, leader_id="a"))
    with pytest.raises(StaleFence):
        store.accept(Fence(number=7, leader_id="b"))
    assert store.highest == FenceStore(tmp_path / "fence.json").highest == Fence(number=7, leader_id="a")


def test_an_unreadable_fence_stops_the_start_instead_of_counting_as_zero(tmp_path: Path) -> None:
    (tmp_path / "fence.json").write_text("{")
    with pytest.raises(StartupError, match="fence"):
        FenceStore(tmp_path / "fence.json")
