"""OpenMP's threads beside a second team."""

import ctypes
import os
import threading

import pytest

from runner.engine.threads import spinning
from runner.engine.threads.spinning import SleepingTeam, read_counters
from tests.waiting import wait_until


def threads() -> set[str]:
    """Ids of this process's threads. Those of other tests begin and end at any time: a number says nothing."""
    return set(os.listdir("/proc/self/task"))  # noqa: PTH208


def test_a_sleeping_team_exists_until_it_is_ended() -> None:
    try:
        library = ctypes.CDLL("libgomp.so.1")
    except OSError:
        pytest.skip("no libgomp here")
    before = threads()

    team = SleepingTeam(library, 3)
    made = threads() - before
    team.end()

    assert len(made) >= 3
    # The library's threads leave on their own once the one that made them has.
    wait_until(lambda: len(threads() & made) <= len(made) - 3, deadline_s=10, what="the team's threads are gone")


def test_counters_only_grow() -> None:
    cpus = os.sched_getaffinity(0)
    first = read_counters(cpus)
    sum(range(100_000))
    second = read_counters(cpus)

    assert all(later >= earlier for earlier, later in zip(first[:3], second[:3], strict=True))
    assert second.busy_s > 0


def test_who_chose_a_spin_count_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    teams = [thread for thread in threading.enumerate() if thread.name == "spinning"]

    chosen = spinning.Spinning(threads=2)

    assert [thread for thread in threading.enumerate() if thread.name == "spinning"] == teams
    chosen.close()
