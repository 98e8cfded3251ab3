"""OpenMP's threads beside a second team."""

import ctypes
import os
import threading

import pytest

from runner.core.threads.spinning import ProcessorTimes
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


def test_what_was_seen_after_a_pause_is_looked_at_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        ctypes.CDLL("libgomp.so.1")
    except OSError:
        pytest.skip("no libgomp here")
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    now_s, looks = 0.0, []

    def read(cpus: set[int]) -> ProcessorTimes:
        looks.append(now_s)
        return read_counters(cpus)

    monkeypatch.setattr(spinning, "read_counters", read)
    threads = spinning.Spinning(threads=2)
    start_ns = threads._next_look_ns - spinning.SOON_NS
    for now_s in (0.01, 0.05, 0.12, 0.5, 0.63, 1.12, 1.14, 9.0, 9.05, 9.11, 9.5):
        threads.look(start_ns + round(now_s * 1e9))
    threads.close()

    assert looks == [0.0, 0.12, 0.63, 1.14, 9.0, 9.11]


def test_who_chose_a_spin_count_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    teams = [thread for thread in threading.enumerate() if thread.name == "spinning"]

    chosen = spinning.Spinning(threads=2)

    assert [thread for thread in threading.enumerate() if thread.name == "spinning"] == teams
    chosen.close()
