"""Services that are forked: they are what their commands would have made, and need their zygote no longer."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.process_table import descendants
from cli.cluster.zygote import PACKAGES, fork_zygote
from tests.integration.cli.forked_service import MODULE
from tests.integration.cli.supervised import DEADLINE_S, marks
from tests.waiting import wait_until


@contextmanager
def supervised(directory: Path, kind: str, how: str) -> Iterator["subprocess.Popen[str]"]:
    """A supervisor of one service, which ends with its standard input."""
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", MODULE, "supervise", str(directory), kind, how]
    with subprocess.Popen(
        command, cwd=PACKAGES, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as supervisor:
        try:
            yield supervisor
        finally:
            supervisor.kill()


def await_ready(supervisor: "subprocess.Popen[str]", directory: Path) -> None:
    """Wait until its service is kept running, and handles signals."""
    assert supervisor.stdout is not None
    assert supervisor.stdout.readline() == "ready\n"
    wait_until(lambda: "started" in marks(directory, "a"), deadline_s=DEADLINE_S, what="the service runs")


def said(supervisor: "subprocess.Popen[str]") -> str:
    """End it in order; return what it said."""
    return supervisor.communicate(timeout=DEADLINE_S)[0]


def below(supervisor: "subprocess.Popen[str]", word: str) -> list[int]:
    """Processes of the supervisor with this word in their command lines."""
    found = []
    for entry in descendants(supervisor.pid):
        words = Path(f"/proc/{entry.pid}/cmdline").read_bytes().split(b"\0")
        if word.encode() in words and b"cli.child" not in words and not entry.zombie:
            found.append(entry.pid)
    return found


def shown(directory: Path, how: str) -> dict[str, Any]:
    """Return what a service is, and check whose child it is, and its end in order."""
    mark = directory / "a.mark"
    with supervised(directory, "facts", how) as supervisor:
        await_ready(supervisor, directory)
        assert said(supervisor) == ""
        assert supervisor.returncode == 0
    facts, *rest = mark.read_text().splitlines()
    assert rest == ["started", "stopped"]
    seen: dict[str, Any] = json.loads(facts)
    assert seen["parent"] == supervisor.pid
    return dict(seen["facts"])


def test_a_forked_service_is_what_its_command_would_have_made(tmp_path: Path) -> None:
    """In the same place in turns, so that both have the same words."""
    spawned = shown(tmp_path / "a", "spawned")
    (tmp_path / "a").rename(tmp_path / "earlier")
    assert shown(tmp_path / "a", "forked") == spawned
    assert spawned["words"][-1] == "ä \n"


@pytest.mark.parametrize("kind", ["refuses", "fails"])
def test_a_forked_service_ends_as_its_command_would(tmp_path: Path, kind: str) -> None:
    texts = []
    for how in ("spawned", "forked"):
        with supervised(tmp_path / "a", kind, how) as supervisor:
            texts.append(said(supervisor))
        (tmp_path / "a").rename(tmp_path / how)
    assert texts[0] == texts[1]
    assert "could not start: " in texts[0]
    assert "the sea is dry" in texts[0] or "there is no sea" in texts[0]


def test_a_forked_service_that_is_killed_is_forked_again(tmp_path: Path) -> None:
    with supervised(tmp_path, "lives", "forked") as supervisor:
        await_ready(supervisor, tmp_path)
        (pid,) = below(supervisor, "lives")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(marks(tmp_path, "a")) == 2, deadline_s=DEADLINE_S, what="it runs again")
        assert below(supervisor, "cli.cluster.zygote")
        assert "a was killed by SIGKILL; starting it again" in said(supervisor)


def test_services_live_without_their_zygote_and_are_started_by_their_commands_then(tmp_path: Path) -> None:
    with supervised(tmp_path, "lives", "forked") as supervisor:
        await_ready(supervisor, tmp_path)
        (zygote,) = below(supervisor, "cli.cluster.zygote")
        (pid,) = below(supervisor, "lives")
        os.kill(zygote, signal.SIGKILL)
        wait_until(lambda: not below(supervisor, "cli.cluster.zygote"), deadline_s=DEADLINE_S, what="it is gone")
        assert below(supervisor, "lives") == [pid]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(marks(tmp_path, "a")) == 2, deadline_s=DEADLINE_S, what="it runs again")
        said(supervisor)
    assert marks(tmp_path, "a") == ["started", "started", "stopped"]


def test_a_forked_service_gets_sigterm_when_the_supervisor_is_killed_and_the_zygote_ends(tmp_path: Path) -> None:
    with supervised(tmp_path, "lives", "forked") as supervisor:
        await_ready(supervisor, tmp_path)
        left = [*below(supervisor, "lives"), *below(supervisor, "cli.cluster.zygote")]
        supervisor.kill()
        supervisor.wait(DEADLINE_S)
        wait_until(
            lambda: not any(Path(f"/proc/{pid}/cwd").exists() for pid in left),
            deadline_s=DEADLINE_S,
            what="nothing is left",
        )
    assert len(left) == 2
    assert marks(tmp_path, "a") == ["started", "stopped"]


def test_services_are_started_by_their_commands_where_the_kernel_refuses(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with supervised(tmp_path, "lives", "refused") as supervisor:
        await_ready(supervisor, tmp_path)
        assert not below(supervisor, "cli.cluster.zygote")
        said(supervisor)
    assert marks(tmp_path, "a") == ["started", "stopped"]
    assert capfd.readouterr().err == (
        "puna: services share no memory: the command line cannot be changed: Invalid argument\n"
    )


def test_a_zygote_outlives_a_fork_that_the_kernel_refuses(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with supervised(tmp_path, "lives", "starved") as supervisor:
        await_ready(supervisor, tmp_path)
        assert below(supervisor, "cli.cluster.zygote")
        said(supervisor)
    assert marks(tmp_path, "a") == ["started", "stopped"]
    assert capfd.readouterr().err == ""


def test_a_process_with_threads_forks_no_zygote() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        assert fork_zygote() is None
    finally:
        ended.set()
        thread.join()
