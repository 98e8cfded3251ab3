"""The commands on a real terminal."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, trained_answers
from tests.integration.cli.terminal import ANSWERED_WITHIN_S, CTRL_C, CTRL_D, Terminal

QUESTION = "What is Puna?"


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
