"""`puna chaos` against the services of a real cluster, as an operator runs it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cluster import Cluster, start_cluster
from tests.waiting import wait_until

SCOPES = ("infer", "models:read", "admin:cluster")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that asks for keys; the environment holds one."""
    directory = tmp_path_factory.mktemp("exercises")
    file = directory / "keys.json"
    words = [word for scope in SCOPES for word in ("--scope", scope)]
    command = [
        sys.executable,
        "-m",
        "cli.main",
        "keys",
        "create",
        "--owner",
        "ada",
        *words,
        "--file",
        str(file),
        "--json",
    ]
    made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUNA_API_KEY", json.loads(made.stdout)["key"])
        running = start_cluster(
            directory / "home", PUNA_API_KEYS_FILE=str(file), PUNA_API_KEY=os.environ["PUNA_API_KEY"]
        )
        patch.setenv("PUNA_HOST", running.url)
        patch.setenv("PUNA_HOME", str(running.home))
        try:
            yield running
        finally:
            running.stop()


def puna(*words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def doctor_on_clocks() -> str:
    report = puna("doctor").communicate(timeout=120)[0]
    return "\n".join(line for line in report.splitlines() if "the server's clock" in line)


def seconds_ahead() -> float:
    found = re.search(r"the server's clock is ([\d.]+) s ahead", doctor_on_clocks())
    return float(found[1]) if found else 0.0


def ask(cluster: Cluster) -> int:
    headers = {"authorization": f"Bearer {os.environ['PUNA_API_KEY']}"}
    body = {"model": "demo", "prompt": "Hello", "stream": False, "options": {"num_predict": 4}}
    return cluster.post("/api/generate", body, headers=headers).status_code


def test_a_gateway_with_a_wrong_clock_answers_and_doctor_names_it(cluster: Cluster) -> None:
    exercise = puna("chaos", "clock", "gateway", "--by", "10m", "--for", "1h", "--yes")
    assert exercise.stdout is not None
    try:
        said = exercise.stdout.readline()
        assert said.startswith("gateway (pid ")
        assert "off by 600 s, for 3600 s" in said
        # A figure is off by half of what the answer took: on a busy machine doctor is asked again.
        wait_until(lambda: 599 <= seconds_ahead() < 601, deadline_s=30, what="doctor names the clock")
        assert ask(cluster) == httpx.codes.OK
    finally:
        exercise.terminate()
        assert "interrupted; the fault has ended" in exercise.communicate(timeout=60)[0]
    wait_until(lambda: "agrees" in doctor_on_clocks(), deadline_s=30, what="its clock is right again")
    assert ask(cluster) == httpx.codes.OK


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("clock", "gateway", "--by", "0"), "--by is a second at least"),
        (("clock", "gateway", "--by", "soon"), "'soon' is not a duration"),
        (("clock", "demo"), "no demo runs in"),
        (("clock", "gateway", "--home", "/nowhere"), "no gateway runs in"),
    ],
)
def test_a_clock_that_cannot_be_set_is_an_error(cluster: Cluster, words: tuple[str, ...], said: str) -> None:
    exercise = puna("chaos", *words, "--yes")
    assert said in exercise.communicate(timeout=60)[0]
    assert exercise.returncode != 0


def test_a_stopped_service_goes_on_after_its_time(cluster: Cluster) -> None:
    assert ask(cluster) == httpx.codes.OK  # a model that is loaded needs no scheduler
    exercise = puna("chaos", "stop", "scheduler", "--for", "2s", "--yes")
    assert exercise.stdout is not None
    assert "is stopped, for 2 s" in exercise.stdout.readline()
    stat = Path(f"/proc/{cluster.pid_of('scheduler')}/stat").read_text()
    assert stat.rpartition(")")[2].split()[0] == "T"
    assert ask(cluster) == httpx.codes.OK
    assert exercise.communicate(timeout=60)[0] == "it has ended\n"
    assert exercise.returncode == 0
