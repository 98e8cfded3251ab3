"""The commands in a pipe, as scripts use them: what they print, and their exit status."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.cluster import trained_answers
from tests.integration.cli.place import ROOT, Place, run_puna
from tests.ports import free_port
from tests.waiting import wait_until

QUESTION = "What is Puna?"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)


def test_each_kind_of_failure_has_its_exit_status(place: Place) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    failures = {
        ("show", "no-such-model"): 3,
        ("rm", "no-such-model"): 3,
        ("run", "no-such-model", "hello"): 3,
        ("load", "no-such-model"): 3,
        ("drain", "no-such-node"): 3,
        ("devices", "clear", "no-such-device"): 3,
        ("bench", "no-such-model"): 3,
        ("bench", "demo", "--concurrency", "many"): 2,
        ("run", "demo", "--option", "temperature"): 2,
        ("run", "demo", "--option", "temperature=50", "hello"): 1,
    }
    for words, status in failures.items():
        done = place.puna(*words)
        assert (done.returncode, done.stdout) == (status, ""), (words, done.stderr)
        assert done.stderr.startswith("puna: " if status != 2 else "Usage: "), done.stderr

    assert place.puna("models", PUNA_API_KEY="wrong").returncode == 4
    assert place.puna("rm", "demo", PUNA_API_KEY=place.reader).returncode == 4
    assert place.puna("models", PUNA_HOST=nobody).returncode == 5
    assert place.puna("top", "--json", PUNA_HOST=nobody).returncode == 5
    assert place.puna("bench", "demo", PUNA_HOST=nobody).returncode == 5


def test_a_key_may_be_in_a_file_that_nobody_else_reads(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(place.key + "\n")
    path.chmod(0o600)
    read = place.puna("models", PUNA_API_KEY="", PUNA_API_KEY_FILE=str(path))
    path.chmod(0o644)
    refused = place.puna("models", PUNA_API_KEY="", PUNA_API_KEY_FILE=str(path))

    assert read.returncode == 0
    assert "demo" in read.stdout
    assert (refused.returncode, refused.stderr) == (
        4,
        f"puna: PUNA_API_KEY_FILE: {path} must be a file with mode 0600\n",
    )


def test_a_question_has_files_and_an_answer_a_form(place: Place, tmp_path: Path) -> None:
    (tmp_path / "question.txt").write_text(QUESTION)
    schema = {"type": "object", "properties": {"name": {"enum": ["Puna"]}}, "required": ["name"]}
    (tmp_path / "schema.json").write_text(json.dumps({**schema, "additionalProperties": False}))

    whole = place.json("run", "demo", "--no-think", "--format", str(tmp_path / "schema.json"), "-o", "seed=1", QUESTION)
    done = place.piped("run", "demo", "--temperature", "0", "--file", str(tmp_path / "question.txt"))

    assert json.loads(whole["message"]["content"]) == {"name": "Puna"}
    assert whole["done"]
    assert whole["eval_count"] > 0
    assert done.returncode == 0
    assert done.stdout.strip()


def test_files_that_cannot_be_asked_about_are_refused(place: Place, tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(PNG)
    (tmp_path / "noise.bin").write_bytes(b"\xff\xfe\x00\x01")

    blind = place.puna("run", "demo", "--file", str(tmp_path / "picture.png"), "What is this?")
    noise = place.puna("run", "demo", "--file", str(tmp_path / "noise.bin"), "What is this?")
    missing = place.puna("run", "demo", "--file", str(tmp_path / "none"), "What is this?")

    assert blind.returncode == noise.returncode == missing.returncode == 1
    assert "vision" in blind.stderr
    assert "noise.bin is neither an image" in noise.stderr
    assert missing.stderr == f"puna: {tmp_path / 'none'}: No such file or directory\n"


def test_a_dialogue_in_a_pipe_is_kept_in_a_file_and_in_a_model(place: Place, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    lines = [
        "/set temperature 0",
        QUESTION,
        f"/save {saved}",
        "/clear",
        "/show messages",
        "/save told",
        "/bye",
        "never asked",
    ]
    first = place.piped("chat", "demo", stdin="\n".join(lines) + "\n")
    again = place.piped("chat", "demo", stdin=f"/load {saved}\n/save told\n/load told\n/show parameters\n")
    shown = place.json("show", "told")
    removed = place.puna("rm", "told")

    answer = trained_answers()[QUESTION]
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.count(answer) == 1
    assert "never asked" not in first.stdout
    assert json.loads(saved.read_text())["messages"][1]["content"] == answer
    assert again.stdout.startswith("talking to demo, 2 messages so far\nsaved as told\ntalking to told\n")
    assert [one["content"] for one in shown["messages"]] == [QUESTION, answer]
    assert removed.returncode == 0


def test_a_mistake_in_a_dialogue_does_not_end_it(place: Place) -> None:
    done = place.piped(
        "chat", "demo", stdin="/nonsense\n/set colour blue\n/load no-such-model\n/file none\n/show settings\n"
    )

    assert done.returncode == 0
    assert [line.partition(";")[0] for line in done.stderr.splitlines()] == [
        "puna: there is no command /nonsense",
        "puna: there is no setting 'colour'",
        "puna: model 'no-such-model' not found",
        "puna: none: No such file or directory",
        "puna: /show knows modelfile, parameters, template, system, license and messages",
    ]


def test_loading_tells_its_news_and_unloading_its_count(place: Place) -> None:
    place.puna("unload", "demo")
    lines = place.puna("load", "demo", "--json").stdout.splitlines()

    assert json.loads(lines[-1]) == {"status": "ready"}
    assert place.json("unload", "demo")["replicas"] == 1
    assert place.puna("load", "demo").stdout.splitlines()[-1] == "ready"


def test_one_model_that_is_not_there_does_not_keep_the_others(place: Place) -> None:
    assert place.puna("cp", "demo", "second").returncode == 0

    done = place.puna("rm", "no-such-model", "second", "--json")

    assert (done.returncode, json.loads(done.stdout)) == (3, {"deleted": ["second"]})


def test_a_measurement_says_what_it_did(place: Place) -> None:
    words = ("--concurrency", "1,2", "--requests", "4", "--prompt-tokens", "64", "--answer-tokens", "8")
    fresh = place.json("bench", "demo", *words)
    shared = place.json("bench", "demo", *words, "--shared", "1")
    text = place.puna("bench", "demo", *words).stdout.splitlines()

    assert fresh["asked"]["concurrency"] == [1, 2]
    assert not fresh["interrupted"]
    for level in fresh["levels"]:
        assert (level["requests"], level["failed"]) == (4, 0)
        assert level["ttft_ms_p50"] <= level["ttft_ms_p95"]
        assert 40 <= level["prompt_tokens"] <= 90
        assert 0 < level["answer_tokens"] <= 8
        assert level["tokens_per_s"] > 0
        assert level["cached_share"] < 0.1
    assert shared["levels"][1]["cached_share"] > 0.9
    assert text[1].split()[:3] == ["AT", "ONCE", "REQUESTS"]
    assert len(text) == 4


def test_ctrl_c_ends_a_measurement_with_what_was_measured(place: Place) -> None:
    bench = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "bench", "demo", "--concurrency", "1,2", "--requests", "100000", "--json"],
        cwd=ROOT,
        env={**os.environ, **place.environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    headers = {"authorization": f"Bearer {place.key}"}

    def busy() -> int:
        models = httpx.get(f"{place.cluster.url}/puna/v1/placements", headers=headers, timeout=60).json()["placements"]
        return sum(one["slots_busy"] for one in models)

    try:
        wait_until(lambda: busy() > 0, deadline_s=30, what="the measurement runs")
        bench.send_signal(signal.SIGINT)
        out, err = bench.communicate(timeout=120)
    finally:
        bench.kill()  # else it goes on beside all tests after this one

    assert (bench.returncode, json.loads(out)["interrupted"]) == (130, True)
    assert err == "puna: stopped; the levels that were measured are shown\n"
    wait_until(lambda: busy() == 0, deadline_s=30, what="its requests are gone")


def test_top_prints_the_cluster_once(place: Place) -> None:
    place.puna("load", "demo")
    state = place.json("top")
    text = place.puna("top").stdout

    assert [node["state"] for node in state["nodes"]] == ["ready"]
    assert [model["name"] for model in state["models"]] == ["demo:latest"]
    assert state["figures"]["tokens_per_s"] == 0
    assert state["requests"] == []
    assert "CPU" in text
    assert "demo:latest  ready" in text


def test_versions_are_those_of_all_parts(place: Place) -> None:
    versions = place.json("version")

    release = versions["client"].partition("+")[0]  # whoever commits meanwhile has other builds of it
    assert versions["server"].partition("+")[0] == release
    assert all(versions["engine"] in build for build in versions["nodes"].values())
    assert versions["nodes"]
    assert place.puna("--version").stdout.startswith(f"puna {release}")


@pytest.mark.parametrize(
    ("shell", "words", "names"),
    [
        ("bash", "puna show de", ["demo"]),
        ("bash", "puna drain no", ["node-"]),
        ("bash", "puna show x", []),
        ("zsh", "puna show de", ["demo"]),
        ("fish", "puna show de", ["demo"]),
    ],
)
def test_shells_complete_names_that_the_server_knows(place: Place, shell: str, words: str, names: list[str]) -> None:
    asked = {"_PUNA_COMPLETE": f"complete_{shell}", "COMP_WORDS": words, "COMP_CWORD": "2"}
    asked |= {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}

    said = place.piped(**asked).stdout
    offered = re.findall(r'"([^"]+)"', said) if shell == "zsh" else said.split()

    assert len(offered) == len(names)
    assert all(one.startswith(name) for one, name in zip(offered, names, strict=True))


def test_completion_without_a_server_offers_nothing_and_complains_of_nothing(tmp_path: Path) -> None:
    asked = {"_PUNA_COMPLETE": "complete_bash", "COMP_WORDS": "puna show d", "COMP_CWORD": "2"}

    done = run_puna(PUNA_HOST=f"127.0.0.1:{free_port()}", PUNA_HOME=str(tmp_path), **asked)

    assert (done.stdout.strip(), done.stderr) == ("", "")
