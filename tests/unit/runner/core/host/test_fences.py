"""Fences of commands to a host."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.clock import SystemClock
from common.errors import InvalidRequest, StaleFence, StartupError
from common.fences import fence_max
from runner.core.host.fences import NO_FENCE, Fence, FenceVerdict, judge_fence
from runner.host.fence_store import FenceStore

NOW_S = 1_790_000_000.0
LIMIT = fence_max(NOW_S)


class SetClock(SystemClock):
    """A wall clock that the test sets."""

    wall_s = NOW_S

    def wall_unix_s(self) -> float:
        return self.wall_s


fences = st.builds(Fence, number=st.integers(0, 5), leader_id=st.sampled_from("ab"))


def is_accepted(fence: Fence, *, highest: Fence) -> bool:
    return judge_fence(fence, highest=highest, number_max=LIMIT) is FenceVerdict.ACCEPTED


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
    FenceStore(tmp_path / "fence.json", SetClock()).accept(Fence(number=7, leader_id="a"))
    restarted = FenceStore(tmp_path / "fence.json", SetClock())
    assert restarted.highest == Fence(number=7, leader_id="a")
    with pytest.raises(StaleFence):
        restarted.accept(Fence(number=6, leader_id="a"))


def test_a_refused_fence_changes_nothing(tmp_path: Path) -> None:
    store = FenceStore(tmp_path / "fence.json", SetClock())
    store.accept(Fence(number=7, leader_id="a"))
    with pytest.raises(StaleFence):
        store.accept(Fence(number=7, leader_id="b"))
    assert store.highest == FenceStore(tmp_path / "fence.json", SetClock()).highest == Fence(number=7, leader_id="a")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"number": "x", "leader_id": "a"}', bytes(100)])
def test_a_corrupt_fence_is_set_aside_and_no_earlier_leader_is_obeyed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "fence.json").write_bytes(content)
    now_ms = int(NOW_S * 1000)
    for _ in range(2):  # also by the next start
        with pytest.raises(StaleFence) as stale:
            FenceStore(tmp_path / "fence.json", SetClock()).accept(Fence(number=now_ms, leader_id="old"))
    assert [path.read_bytes() for path in tmp_path.glob("fence.json.corrupt-*")] == [content]
    higher = Fence(number=stale.value.high_water + 1, leader_id="again")
    FenceStore(tmp_path / "fence.json", SetClock()).accept(higher)


def test_a_fence_that_cannot_be_opened_stops_the_start_instead_of_counting_as_zero(tmp_path: Path) -> None:
    (tmp_path / "fence.json").mkdir()
    with pytest.raises(StartupError, match="fence"):
        FenceStore(tmp_path / "fence.json", SetClock())


@pytest.mark.parametrize("number", [LIMIT + 1, 2**64 - 1])
def test_a_fence_beyond_the_clock_is_refused_and_changes_nothing(tmp_path: Path, number: int) -> None:
    store = FenceStore(tmp_path / "fence.json", SetClock())
    store.accept(Fence(number=LIMIT - 1, leader_id="a"))
    with pytest.raises(InvalidRequest, match=rf"fence {number} is more than a day ahead.*at most {LIMIT};"):
        store.accept(Fence(number=number, leader_id="evil"))
    store.accept(Fence(number=LIMIT, leader_id="b"))
    with pytest.raises(StaleFence) as stale:
        store.accept(Fence(number=LIMIT - 1, leader_id="a"))
    assert stale.value.high_water == LIMIT


def test_a_stored_fence_beyond_the_clock_does_not_count(tmp_path: Path) -> None:
    """An older version stored whatever it was sent."""
    (tmp_path / "fence.json").write_text(f'{{"number": {2**64 - 1}, "leader_id": "evil"}}')
    with pytest.raises(InvalidRequest):
        FenceStore(tmp_path / "fence.json", SetClock()).accept(Fence(number=2**64 - 1, leader_id="evil"))
    FenceStore(tmp_path / "fence.json", SetClock()).accept(Fence(number=7, leader_id="a"))
    assert FenceStore(tmp_path / "fence.json", SetClock()).highest == Fence(number=7, leader_id="a")


def test_a_clock_that_was_far_behind_at_the_start_costs_no_protection_once_it_is_right(tmp_path: Path) -> None:
    FenceStore(tmp_path / "fence.json", SetClock()).accept(Fence(number=LIMIT - 5, leader_id="a"))
    clock = SetClock()
    clock.wall_s = 0.0
    store = FenceStore(tmp_path / "fence.json", clock)
    with pytest.raises(InvalidRequest, match="set the clock of this node"):
        store.accept(Fence(number=LIMIT - 4, leader_id="b"))
    clock.wall_s = NOW_S
    with pytest.raises(StaleFence):
        store.accept(Fence(number=LIMIT - 6, leader_id="old"))
