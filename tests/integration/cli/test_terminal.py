"""The commands on a real terminal."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, start_cluster, trained_answers

ROOT = Path(__file__).resolve().parents[3]
ANSWERED_WITHIN_S = 60.0
QUESTION = "What is Puna?"
# Makes standard input the controlling terminal, so that its Ctrl-C becomes a signal, and becomes the command.
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
CTRL_C, CTRL_D = b"\x03", b"\x04"
_ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Terminal:
    """A command on a terminal of its own, 100 columns wide."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self._text = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, sys.executable, "-m", "cli.main", *arguments],
            cwd=ROOT,
            env={**os.environ, "PUNA_HOME": str(home), "TERM": "xterm", "COLUMNS": "100"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def wait_for(self, text: str) -> str:
        """Read until the text appears, and return everything up to it, without escapes; what follows is kept."""
        deadline_s = time.monotonic() + ANSWERED_WITHIN_S
        while text.encode() not in self._text:
            left_s = deadline_s - time.monotonic()
            ready, _, _ = select.select([self._master], [], [], max(0.0, left_s))
            assert ready, f"{text!r} did not appear in {self._text!r}"
            self._text = _ESCAPE.sub(b"", self._text + self._read())
        before, _, self._text = self._text.partition(text.encode())
        return (before + text.encode()).decode().replace("\r\n", "\n")

    def rest(self) -> str:
        """Everything until the command ends."""
        while data := self._read():
            self._text += data
        self.process.wait(ANSWERED_WITHIN_S)
        return _ESCAPE.sub(b"", self._text).decode().replace("\r\n", "\n")

    def hang_up(self) -> None:
        """Close the terminal, as closing its window does."""
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)

    def _read(self) -> bytes:
        try:
            return os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return b""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = start_cluster(tmp_path_factory.mktemp("terminal") / "home")
    yield cluster
    cluster.stop()


@pytest.fixture
def dialogue(cluster: Cluster) -> Iterator[Terminal]:
    terminal = Terminal(cluster.home, "run", "demo", "--temperature", "0")
    terminal.wait_for(">>> ")
    yield terminal
    terminal.close()


def test_a_dialogue_answers_and_ends_with_bye(dialogue: Terminal) -> None:
    dialogue.type(QUESTION.encode() + b"\n")
    assert trained_answers()[QUESTION] in dialogue.wait_for(">>> ")
    dialogue.type(b"/bye\n")
    dialogue.rest()

    assert dialogue.process.returncode == 0


def test_ctrl_d_ends_a_dialogue(dialogue: Terminal) -> None:
    dialogue.type(CTRL_D)
    dialogue.rest()

    assert dialogue.process.returncode == 0


def test_ctrl_c_stops_the_answer_and_not_the_dialogue(cluster: Cluster, dialogue: Terminal) -> None:
    cluster.post("/api/generate", {"model": "demo"})  # loads it
    runners = _runner_pids(cluster)
    assert runners
    for pid in runners:
        os.kill(pid, signal.SIGSTOP)
    try:
        dialogue.type(QUESTION.encode() + b"\n")
        dialogue.wait_for("waiting for demo")
        dialogue.type(CTRL_C)
        dialogue.wait_for(">>> ")
    finally:
        for pid in runners:
            with contextlib.suppress(ProcessLookupError):  # on a slow machine its host may have ended it as hung
                os.kill(pid, signal.SIGCONT)
    dialogue.type(QUESTION.encode() + b"\n")

    assert trained_answers()[QUESTION] in dialogue.wait_for(">>> ")


def test_an_error_does_not_end_a_dialogue(cluster: Cluster) -> None:
    terminal = Terminal(cluster.home, "run", "no-such-model")
    terminal.wait_for(">>> ")
    terminal.type(b"hello\n")
    said = terminal.wait_for(">>> ")
    terminal.close()

    assert "puna: model 'no-such-model' not found\n" in said


def test_models_is_a_table_on_a_terminal(cluster: Cluster) -> None:
    terminal = Terminal(cluster.home, "models")
    lines = terminal.rest().splitlines()
    terminal.close()

    assert lines[0].split()[:3] == ["NAME", "DIGEST", "SIZE"]
    assert lines[1].startswith("demo")


def test_closing_its_terminal_stops_the_cluster(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "up", "--port", "0", "--grpc-port", "0")
    terminal.wait_for("Ctrl-C stops everything.")
    terminal.hang_up()

    assert terminal.process.wait(ANSWERED_WITHIN_S) == 0
    assert not list((tmp_path / "run").glob("*.sock"))


def test_a_cluster_can_be_stopped_while_it_starts(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "up", "--port", "0", "--grpc-port", "0")
    terminal.wait_for("Starting Puna")
    terminal.type(CTRL_C)
    said = terminal.rest()

    assert terminal.process.returncode == 0
    assert "is ready" not in said
    assert not list((tmp_path / "run").glob("*.sock"))


def _runner_pids(cluster: Cluster) -> list[int]:
    return [pid for pid in cluster.members() if b"runner\0serve" in Path(f"/proc/{pid}/cmdline").read_bytes()]
