"""A bound that is missed fails, also when the test's own processes took the processors; others make it a skip."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests import waiting
from tests.waiting import OwnProcess, Stopwatch, Usage, own_used_s, sample_usage, wait_until

BURNT_S = 0.2
BURN = f"import time\nwhile time.process_time() < {BURNT_S + 0.05}: pass"
CORES = os.cpu_count() or 1


def samples(*, busy_s: float, own_s: float) -> Iterator[Usage]:
    """Processor time of one second, by process tree."""
    key = (1, 1)
    yield Usage(0.0, 0.0, {key: OwnProcess(None, 0.0, 0.0)})
    while True:
        yield Usage(1.0, busy_s * CORES, {key: OwnProcess(None, own_s * CORES, 0.0)})


def watch_of(*, busy_s: float, own_s: float) -> Stopwatch:
    found = samples(busy_s=busy_s, own_s=own_s)
    return Stopwatch(lambda: next(found))


@pytest.mark.parametrize(("busy_s", "own_s"), [(1.0, 1.0), (1.0, 0.95), (0.4, 0.0)], ids=["own", "mostly", "idle"])
def test_a_bound_that_is_missed_fails_when_others_are_quiet(busy_s: float, own_s: float) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"the answer: 2\.00 s, allowed are 1 s"):
        watch_of(busy_s=busy_s, own_s=own_s).assert_within(1.0, "the answer", took_s=2.0)


def test_a_bound_that_is_missed_while_others_work_is_not_measurable() -> None:
    with pytest.raises(pytest.skip.Exception, match=r"not measurable here: .* other processes used 70% of the proc"):
        watch_of(busy_s=1.0, own_s=0.3).assert_within(1.0, "the answer", took_s=2.0)


def test_a_bound_that_holds_needs_no_quiet_machine() -> None:
    watch_of(busy_s=1.0, own_s=0.0).assert_within(1.0, "the answer", took_s=0.9)


def test_a_wait_that_is_late_beside_other_work_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stopwatch, "disturbance", lambda _: "other processes")
    monkeypatch.setattr(waiting, "_PATIENCE", 1e6)
    looks = iter([False] * 5 + [True])
    with pytest.warns(UserWarning, match="instead of 0.001 s on a busy machine: it is over"):
        wait_until(lambda: next(looks), deadline_s=0.001, what="it is over")


def test_children_and_their_orphans_are_our_own() -> None:
    before = sample_usage()
    parent = subprocess.Popen([sys.executable, "-c", "import os; os.fork(); input()"], stdin=subprocess.PIPE)
    wait_until(lambda: len(sample_usage().processes) == len(before.processes) + 2, deadline_s=20, what="two processes")
    parent.kill()
    parent.wait()
    assert len(sample_usage().processes) == len(before.processes) + 1, "the orphan belongs to init, and to us"
    parent.communicate()
    wait_until(lambda: len(sample_usage().processes) == len(before.processes), deadline_s=20, what="it has ended")


def test_what_dead_children_used_is_our_own() -> None:
    before = sample_usage()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert own_used_s(before, sample_usage()) >= BURNT_S
