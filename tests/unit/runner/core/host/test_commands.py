"""Start and Stop of a placement that may already be here."""

import pytest

from common.errors import PlacementMismatch
from runner.core.host.commands import Running, attaches, check_stop

RUNNING = Running(generation=2, spec=b"spec")


def test_an_unknown_placement_is_spawned() -> None:
    assert not attaches(None, generation=1, spec=b"spec")


@pytest.mark.behaviour("B-86")
def test_the_same_start_again_attaches_to_the_running_one() -> None:
    assert attaches(RUNNING, generation=2, spec=b"spec")


@pytest.mark.behaviour("B-86")
def test_another_spec_under_the_same_generation_is_refused() -> None:
    with pytest.raises(PlacementMismatch):
        attaches(RUNNING, generation=2, spec=b"other")


def test_a_higher_generation_replaces_the_running_one() -> None:
    assert not attaches(RUNNING, generation=3, spec=b"other")


def test_a_lower_generation_is_refused() -> None:
    with pytest.raises(PlacementMismatch):
        attaches(RUNNING, generation=1, spec=b"spec")


def test_a_stop_needs_the_same_or_a_higher_generation() -> None:
    check_stop(RUNNING, generation=2)
    check_stop(RUNNING, generation=3)
    with pytest.raises(PlacementMismatch):
        check_stop(RUNNING, generation=1)
