"""The supervisor with tiny real processes."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.cluster.home import Home
from cli.cluster.process_table import OWNER_VARIABLE, end_processes_of, is_running, read_process
from cli.cluster.service import ServiceDied, ServiceState, Supervisor
from tests.integration.cli.supervised import BROKEN, DEADLINE_S, OBEDIENT, STUBBORN, marks, spec, until
from tests.waiting import Stopwatch

ROOT = Path(__file__).resolve().parents[3]


class Watched:
    """A supervisor, what it said, and the order in which its services changed."""

    def __init__(self, *specs: object) -> None:
        self.lines: list[str] = []
        self.changes: list[tuple[str, ServiceState]] = []
        self.supervisor = Supervisor(specs, say=self.lines.append, changed=self._changed)  # type: ignore[arg-type]
        self._last: dict[str, ServiceState] = {}

    def _changed(self) -> None:
        for name, service in self.supervisor.services.items():
            if self._last.get(name, ServiceState.WAITING) is not service.state:
                self.changes.append((name, service.state))
                self._last[name] = service.state

    def pid(self, name: str) -> int:
        child = self.supervisor.services[name].child
        assert child is not None
        return child.pid

    async def stop(self, *, hurry: bool = False) -> None:
        event = asyncio.Event()
        if hurry:
            event.set()
        await self.supervisor.stop(event)


async def test_services_start_after_what_they_need_and_stop_before_it(tmp_path: Path) -> None:
    watched = Watched(spec(tmp_path, "top", needs=frozenset({"base"})), spec(tmp_path, "base"))
    await watched.supervisor.start()
    await watched.stop()

    assert watched.changes == [
        ("base", ServiceState.STARTING),
        ("base", ServiceState.RUNNING),
        ("top", ServiceState.STARTING),
        ("top", ServiceState.RUNNING),
        ("top", ServiceState.STOPPED),
        ("base", ServiceState.STOPPED),
    ]
    assert marks(tmp_path, "base") == ["started", "stopped"]


async def test_a_killed_service_is_started_again_and_one_line_says_so(tmp_path: Path) -> None:
    watched = Watched(spec(tmp_path, "a"))
    await watched.supervisor.start()
    first = watched.pid("a")
    os.kill(first, signal.SIGKILL)
    await until(lambda: len(marks(tmp_path, "a")) == 2)

    assert watched.pid("a") != first
    assert watched.lines == [f"a was killed by SIGKILL; starting it again in 0.5 s (log: {tmp_path / 'a.log'})"]
    await watched.stop()


async def test_a_service_that_keeps_dying_waits_longer_each_time(tmp_path: Path) -> None:
    watched = Watched(spec(tmp_path, "a"))
    await watched.supervisor.start()
    for count in (1, 2):
        os.kill(watched.pid("a"), signal.SIGKILL)
        await until(lambda count=count: len(marks(tmp_path, "a")) == count + 1)  # type: ignore[misc]
    await watched.stop()

    assert [line.partition(" again in ")[2].partition(" (")[0] for line in watched.lines] == ["0.5 s", "1 s"]


async def test_a_service_that_waits_for_its_restart_can_be_stopped(tmp_path: Path) -> None:
    watched = Watched(spec(tmp_path, "a"))
    await watched.supervisor.start()
    os.kill(watched.pid("a"), signal.SIGKILL)
    await until(lambda: watched.supervisor.services["a"].state is ServiceState.RESTARTING)
    await watched.stop()

    assert marks(tmp_path, "a") == ["started"]
    assert watched.supervisor.services["a"].state is ServiceState.STOPPED


async def test_a_service_that_cannot_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    watched = Watched(spec(tmp_path, "a", BROKEN), spec(tmp_path, "b", needs=frozenset({"a"})))
    with pytest.raises(ServiceDied, match=r"a could not start: the port is taken \(log: .*a\.log\)"):
        await watched.supervisor.start()
    await watched.stop()

    assert marks(tmp_path, "b") == []


async def test_a_service_that_is_not_ready_in_time_is_given_up(tmp_path: Path) -> None:
    watched = Watched(spec(tmp_path, "a", "import threading; threading.Event().wait()", ready_within_s=0.3))
    with pytest.raises(ServiceDied, match=r"a was not ready within 0 s"):
        await watched.supervisor.start()
    await watched.stop()


async def test_a_service_that_ignores_sigterm_is_killed_with_its_whole_group(tmp_path: Path) -> None:
    watched = Watched(spec(tmp_path, "a", STUBBORN, stop_within_s=0.3))
    await watched.supervisor.start()
    await until(lambda: len(marks(tmp_path, "a")) == 1)
    grandchild = read_process(int(marks(tmp_path, "a")[0]))
    assert grandchild is not None
    await watched.stop()

    assert watched.lines == ["a did not stop within 0 s and is killed"]
    await until(lambda: not is_running(grandchild.pid, grandchild.start_ticks))


async def test_a_frozen_service_is_killed(tmp_path: Path) -> None:
    watched = Watched(spec(tmp_path, "a", stop_within_s=0.3))
    await watched.supervisor.start()
    os.kill(watched.pid("a"), signal.SIGSTOP)
    await watched.stop()

    assert watched.supervisor.services["a"].child is None


async def test_hurry_does_not_wait_for_a_service_that_takes_its_time(tmp_path: Path) -> None:
    watched = Watched(spec(tmp_path, "a", STUBBORN, stop_within_s=600))
    await watched.supervisor.start()
    await asyncio.wait_for(watched.stop(hurry=True), DEADLINE_S)

    assert watched.supervisor.services["a"].child is None


async def test_a_start_that_is_cancelled_can_be_stopped(tmp_path: Path) -> None:
    watched = Watched(spec(tmp_path, "a", "import threading; threading.Event().wait()"))
    start = asyncio.create_task(watched.supervisor.start())
    await until(lambda: watched.supervisor.services["a"].child is not None)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await watched.stop()

    assert watched.supervisor.services["a"].child is None


PARENT = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-m", "cli.child", str(os.getpid()), "--", sys.executable, "-c", *sys.argv[1:]],
                 start_new_session=True)
sys.stdin.read()
"""


def test_a_child_gets_sigterm_when_its_parent_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "child.mark"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, OBEDIENT, str(mark)],
        stdin=subprocess.PIPE,
        cwd=ROOT,
    )
    asyncio.run(until(lambda: marks(tmp_path, "child") == ["started"]))
    parent.kill()
    parent.communicate()

    asyncio.run(until(lambda: marks(tmp_path, "child") == ["started", "stopped"]))


def test_a_child_whose_parent_died_before_it_could_ask_for_the_signal_does_not_start(tmp_path: Path) -> None:
    mark = tmp_path / "child.mark"
    somebody_else = "1" if os.getpid() != 1 else "2"
    done = subprocess.run(  # noqa: PLW1510  # the status is what the test looks at
        [sys.executable, "-m", "cli.child", somebody_else, "--", sys.executable, "-c", OBEDIENT, str(mark)],
        cwd=ROOT,
        timeout=DEADLINE_S,
    )

    assert done.returncode == 1
    assert not mark.exists()


def test_a_command_that_does_not_exist_is_named() -> None:
    done = subprocess.run(  # noqa: PLW1510  # the status is what the test looks at
        [sys.executable, "-m", "cli.child", str(os.getpid()), "--", "no-such-command"],
        cwd=ROOT,
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (127, "no-such-command: No such file or directory\n")


def test_what_a_killed_supervisor_left_is_found_by_its_home_and_ended(tmp_path: Path) -> None:
    mark = tmp_path / "left.mark"
    left = subprocess.Popen(
        [sys.executable, "-c", OBEDIENT, str(mark)], env={**os.environ, OWNER_VARIABLE: str(tmp_path)}
    )
    asyncio.run(until(mark.exists))
    watch = Stopwatch()
    count = asyncio.run(end_processes_of(Home(real=tmp_path, path=tmp_path)))

    assert count == 1
    assert left.wait(DEADLINE_S) == 0
    watch.assert_within(5, "an obedient process ends")
