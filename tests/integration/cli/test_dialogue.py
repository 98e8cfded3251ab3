"""The commands on a terminal: colours, bars, keys and Ctrl-C."""

import stat
from pathlib import Path

import pytest

from tests.cluster import trained_answers
from tests.integration.cli.place import Place
from tests.integration.cli.terminal import CTRL_C, CTRL_D

QUESTION = "What is Puna?"
DIM, ALTERNATE, BACK = b"\x1b[2m", b"\x1b[?1049h", b"\x1b[?1049l"


def test_ctrl_c_twice_at_the_prompt_leaves(place: Place) -> None:
    terminal = place.terminal("chat", "demo")
    terminal.wait_for(">>> ")
    terminal.type(b"half a question")
    terminal.wait_for("half a question")
    terminal.interrupt("Ctrl-C once more")
    terminal.wait_for(">>> ")
    terminal.interrupt("puna: left by Ctrl-C")
    terminal.rest()
    terminal.close()

    assert terminal.process.returncode == 130


def test_questions_have_several_lines_and_are_remembered_for_this_user_alone(place: Place, tmp_path: Path) -> None:
    host = f"127.0.0.1:{place.cluster.port}"
    terminal = place.terminal("chat", "demo", "--temperature", "0", PUNA_HOME=str(tmp_path / "own"), PUNA_HOST=host)
    terminal.wait_for(">>> ")
    terminal.type(b'"""What is\n')
    terminal.wait_for("... ")
    terminal.type(b'Puna?"""\n')
    terminal.wait_for(">>> ")
    terminal.type(b"/set seed 1\n")
    assert "seed         1" in terminal.wait_for(">>> ")
    terminal.type(CTRL_D)
    terminal.rest()
    terminal.close()

    history = tmp_path / "own" / "history"
    assert terminal.process.returncode == 0
    assert history.read_text().splitlines()[-3:] == ['"""What is', 'Puna?"""', "/set seed 1"]
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_thinking_is_dimmed_on_a_terminal_and_left_out_of_a_pipe(place: Place) -> None:
    words = ("run", "demo", "--think", "--temperature", "0", "What is 17 times 24?")
    terminal = place.terminal(*words)
    said = terminal.rest()
    terminal.close()
    piped = place.piped(*words).stdout

    thought = "17 times 24 is 17 times 20 plus 17 times 4."
    assert thought in said
    assert DIM in terminal.raw[: terminal.raw.index(thought.encode()[:10])]
    assert thought not in piped
    assert piped.strip()
    assert piped.strip() in said


def test_a_load_draws_a_bar(place: Place) -> None:
    place.puna("unload", "demo")
    terminal = place.terminal("load", "demo")
    said = terminal.rest()
    terminal.close()

    assert terminal.process.returncode == 0
    assert "demo: ready" in said
    assert "━" in said


@pytest.mark.parametrize("key", [b"q", CTRL_C])
def test_top_draws_the_cluster_until_a_key_leaves(place: Place, key: bytes) -> None:
    assert place.puna("load", "demo").returncode == 0
    terminal = place.terminal("top")
    terminal.wait_for("free of")
    terminal.wait_for("tokens/s, prompts")
    terminal.wait_for("demo:latest")
    terminal.type(key)
    terminal.rest()
    terminal.close()

    assert terminal.process.returncode == 0
    assert terminal.raw.count(ALTERNATE) == terminal.raw.count(BACK) == 1


def test_an_answer_is_the_same_in_colour_and_in_a_pipe(place: Place) -> None:
    terminal = place.terminal("run", "demo", "--temperature", "0", QUESTION)
    said = terminal.rest()
    terminal.close()

    assert trained_answers()[QUESTION] in said
    assert "\x1b" not in place.piped("models").stdout
