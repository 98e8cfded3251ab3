"""A fault that did not happen is noticed, so that no test passes for nothing."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.process_faults import DiskFilled, ThreadBlocked
from common.wrong_clock import ClockWrong
from tests.faults import faults
from tests.faults.faults import FaultDidNotHappen, Killed, Stopped, broken, process_state, verify
from tests.full_disk import small_disk
from tests.waiting import wait_until


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.communicate()


def test_a_stopped_process_is_seen_as_stopped_and_goes_on(process: "subprocess.Popen[bytes]") -> None:
    with broken(Stopped(process.pid)):
        assert process_state(process.pid) == "T"
    assert process_state(process.pid) != "T"


def test_a_killed_process_is_seen_as_dead(process: "subprocess.Popen[bytes]") -> None:
    with broken(Killed(process.pid)):
        assert process_state(process.pid) in ("", "Z")


@pytest.mark.parametrize("kind", [Killed, Stopped])
def test_the_wrong_target_fails_loudly(
    kind: type[Killed] | type[Stopped], process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "HAPPENS_WITHIN_S", 0.2)
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    fault = kind(bystander.pid)
    fault.inject()
    fault.pid = process.pid  # what the test believes that it broke
    with pytest.raises(FaultDidNotHappen):
        verify(fault)
    fault.heal()
    bystander.kill()
    bystander.communicate()


# The engine's thread computes without the interpreter's lock, as a decode call does: the other one goes on without it.
TWO_THREADS = """
import hashlib, pathlib, threading, time
def compute():
    pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("engine")
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
threading.Thread(target=compute, daemon=True).start()
while True:
    time.time()
"""
IN_ITS_CALL_NS = 300_000_000  # what comes before takes a hundredth of that


@pytest.fixture
def computing() -> Iterator["subprocess.Popen[bytes]"]:
    """A process with two threads that compute."""
    child = subprocess.Popen([sys.executable, "-c", TWO_THREADS])
    wait_until(lambda: ran_ns(child.pid, "engine") > IN_ITS_CALL_NS, deadline_s=20, what="both compute")
    yield child
    child.kill()
    child.wait()


def ran_ns(pid: int, thread: str) -> int:
    """The processor time of a thread; 0 if there is none of this name."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == thread:
            return int((task / "schedstat").read_text().split()[0])
    return 0


def test_a_blocked_thread_stands_still_while_the_others_go_on_and_then_goes_on(
    computing: "subprocess.Popen[bytes]",
) -> None:
    other = Path(f"/proc/{computing.pid}/comm").read_text().strip()
    with broken(ThreadBlocked(computing.pid, "engine")):
        stood, others = ran_ns(computing.pid, "engine"), ran_ns(computing.pid, other)
        wait_until(lambda: ran_ns(computing.pid, other) > others + 10**8, deadline_s=20, what="the other one goes on")
        assert ran_ns(computing.pid, "engine") == stood
    wait_until(lambda: ran_ns(computing.pid, "engine") > stood + 10**7, deadline_s=20, what="it goes on")


def test_a_process_with_a_blocked_thread_can_be_killed_and_reaped(computing: "subprocess.Popen[bytes]") -> None:
    with broken(ThreadBlocked(computing.pid, "engine")):
        computing.kill()
        assert computing.wait(20) == -9


def test_a_thread_that_there_is_not_is_an_error(computing: "subprocess.Popen[bytes]") -> None:
    with pytest.raises(ProcessLookupError, match="no thread 'decoder'"):
        ThreadBlocked(computing.pid, "decoder").inject()


def test_a_stopped_process_goes_on_when_the_one_that_stopped_it_is_killed(process: "subprocess.Popen[bytes]") -> None:
    code = f"from common.process_faults import Stopped; Stopped({process.pid}).inject(); print(flush=True); input()"
    stopper = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert stopper.stdout is not None
    stopper.stdout.readline()
    wait_until(lambda: process_state(process.pid) == "T", deadline_s=20, what="it is stopped")
    stopper.kill()
    stopper.communicate()
    wait_until(lambda: process_state(process.pid) in "SR", deadline_s=20, what="it goes on")


CLOCKS = """
import ctypes, sys, threading, time
libc = ctypes.CDLL(None)
def spin():
    while True:
        time.time()
threading.Thread(target=spin, daemon=True).start()
for line in sys.stdin:
    now = (ctypes.c_long * 2)()
    libc.gettimeofday(now, None)
    print(time.time(), now[0], libc.time(None), time.clock_gettime(5), time.monotonic(), flush=True)
"""
DAY_S = 86_400


class Clocks:
    """A process that tells the time, and reads a clock all the while."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLOCKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def skews_s(self) -> list[int]:
        """Seconds by which each of its wall clocks is ahead, to ten; its monotonic clock is right."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        *wall, monotonic = map(float, self.process.stdout.readline().split())
        assert abs(monotonic - time.monotonic()) < 5
        return [10 * round((seconds - time.time()) / 10) for seconds in wall]


@pytest.fixture
def clocks() -> Iterator[Clocks]:
    told = Clocks()
    yield told
    told.process.kill()
    told.process.communicate()


@pytest.mark.parametrize("skew_s", [300, -DAY_S])
def test_a_wrong_clock_is_off_and_right_again_and_durations_stay(clocks: Clocks, skew_s: int) -> None:
    assert clocks.skews_s() == [0] * 4
    with broken(ClockWrong(clocks.process.pid, skew_s)):
        assert clocks.skews_s() == [skew_s] * 4
    assert clocks.skews_s() == [0] * 4


def test_a_wrong_clock_is_right_when_the_process_that_made_it_is_killed(clocks: Clocks) -> None:
    code = (
        f"from common.wrong_clock import ClockWrong; ClockWrong({clocks.process.pid}, 300).inject(); print(flush=True)"
    )
    maker = subprocess.Popen([sys.executable, "-c", f"{code}; input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert maker.stdout is not None
    maker.stdout.readline()
    assert clocks.skews_s() == [300] * 4
    maker.kill()
    maker.communicate()
    wait_until(lambda: clocks.skews_s() == [0] * 4, deadline_s=20, what="it is right again")


MIB = 2**20


def test_a_filled_disk_has_no_room_until_it_is_healed(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=16) as small:
        disk = small.path
        fault = DiskFilled(disk, leave_bytes=2 * MIB)
        fault.inject()
        assert fault.has_happened()
        with pytest.raises(OSError, match="No space left"):
            (disk / "file").write_bytes(bytes(6 * MIB))
        (disk / "file").unlink()
        fault.heal()
        (disk / "file").write_bytes(bytes(6 * MIB))
