"""A scheduler that is stopped (SIGSTOP) keeps its connections open, and answers nothing."""

import os
import shutil
import signal
from collections.abc import Iterator

import httpx
import pytest

from tests.cluster import Cluster, start_cluster
from tests.integration.cli.place import run_puna
from tests.waiting import Stopwatch, wait_until

ANSWERED_WITHIN_S = 2.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = start_cluster(tmp_path_factory.mktemp("stopped") / "home")
    try:
        shutil.copyfile(cluster.models / "demo.gguf", cluster.models / "cold.gguf")
        wait_until(
            lambda: "cold" in httpx.get(cluster.url + "/api/tags", timeout=30).text, deadline_s=30, what="two models"
        )
        yield cluster
    finally:
        cluster.stop()


def generate(cluster: Cluster) -> httpx.Response:
    return cluster.post(
        "/api/generate", {"model": "demo", "prompt": "x", "stream": False, "options": {"num_predict": 2}}
    )


def test_calls_to_a_stopped_scheduler_end_in_two_seconds_with_503_and_warm_models_answer(cluster: Cluster) -> None:
    assert generate(cluster).status_code == 200
    scheduler = cluster.pid_of("scheduler")
    os.kill(scheduler, signal.SIGSTOP)
    try:
        for method, path, body in (
            ("GET", "/puna/v1/nodes", None),
            ("GET", "/puna/v1/explain?model=demo", None),
            ("POST", "/puna/v1/load", {"model": "cold"}),
        ):
            watch = Stopwatch()
            answer = httpx.request(method, cluster.url + path, json=body, timeout=60)
            assert answer.status_code == 503, (path, answer.text)
            watch.assert_within(ANSWERED_WITHIN_S, path)
        assert generate(cluster).status_code == 200
    finally:
        os.kill(scheduler, signal.SIGCONT)
    wait_until_it_leads(cluster)


@pytest.mark.parametrize("words", [("nodes",), ("load", "cold")])
def test_commands_at_a_scheduler_that_just_stopped_end_in_two_seconds_with_its_reason(
    cluster: Cluster, words: tuple[str, ...]
) -> None:
    scheduler = cluster.pid_of("scheduler")
    os.kill(scheduler, signal.SIGSTOP)
    try:
        watch = Stopwatch()
        refused = run_puna(*words, PUNA_HOST=cluster.url)
        took_s = watch.wall_s
        assert (refused.returncode != 0, "the scheduler cannot be reached" in refused.stderr) == (True, True)
        watch.assert_within(ANSWERED_WITHIN_S, " ".join(words), took_s=took_s)
    finally:
        os.kill(scheduler, signal.SIGCONT)
    wait_until_it_leads(cluster)


def wait_until_it_leads(cluster: Cluster) -> None:
    wait_until(
        lambda: httpx.post(cluster.url + "/puna/v1/load", json={"model": "cold"}, timeout=60).status_code == 200,
        deadline_s=60,
        what="it leads again",
    )
