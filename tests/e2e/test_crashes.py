"""A model whose runner dies again and again on the only node: requests wait for a pause, and every list says why."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.cluster import Cluster, endless, start_cluster
from tests.waiting import Stopwatch, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAUSE_S = 4.0  # after the fourth crash in a row
LOAD_S = 15.0  # of the demo model, on a machine that has other things to do


def puna(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """One command for this cluster."""
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PUNA_HOST": cluster.url, "PUNA_HOME": str(cluster.home)},
    )


def runner_pids(cluster: Cluster) -> set[int]:
    return {one["pid"] for one in cluster.runners() if one["state"] != "error"}


def crash_rows(cluster: Cluster) -> list[dict[str, Any]]:
    answer = httpx.get(f"{cluster.url}/puna/v1/nodes", timeout=60)
    return [row for node in answer.json().get("nodes", []) for row in node["crash_rows"]]


def kill_while_it_answers(cluster: Cluster, number: int, options: dict[str, Any]) -> None:
    """Kill the runner with a request under way, which is another one each time, and wait until that is seen."""
    body = {"model": "demo", "prompt": f"Question {number}", "raw": True, "options": options}
    with httpx.stream("POST", f"{cluster.url}/api/generate", json=body, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        assert "error" not in json.loads(next(answer.iter_lines()))
        # A runner that dies before its host has heard that it is loaded is a load that failed.
        wait_until(
            lambda: "ready" in [one["state"] for one in cluster.runners()],
            deadline_s=20,
            what="the host knows that it serves",
        )
        (pid,) = runner_pids(cluster)
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pid not in runner_pids(cluster), deadline_s=20, what="the crash is seen")


def restart_gateway(cluster: Cluster) -> None:
    old = cluster.pid_of("gateway")
    os.kill(old, signal.SIGKILL)

    def is_back() -> bool:
        try:
            return (
                cluster.pid_of("gateway") not in (0, old)
                and httpx.get(f"{cluster.url}/readyz", timeout=10).status_code == 200
            )
        except httpx.TransportError:
            return False

    wait_until(is_back, deadline_s=60, what="the gateway is back")


def test_a_model_that_crashes_on_the_only_node_is_back_after_a_pause_and_an_operator_lifts_that(
    own_cluster: Cluster,
) -> None:
    options = endless(own_cluster)
    for number in range(3):
        kill_while_it_answers(own_cluster, number, options)
        if number == 1:
            restart_gateway(own_cluster)

    since_crash = Stopwatch()
    ask = {"model": "demo", "messages": [{"role": "user", "content": "What is Puna?"}], "temperature": 0}
    answer = own_cluster.post("/v1/chat/completions", ask)
    assert answer.status_code == 200, answer.text
    answered_s = since_crash.wall_s

    kill_while_it_answers(own_cluster, 3, options)
    (row,) = crash_rows(own_cluster)
    assert (row["model"], row["crashes"]) == ("demo:latest", 4)
    assert row["error"] == "the runner was ended by signal 9 (SIGKILL)"
    assert row["retry_at_unix_ms"] - row["last_at_unix_ms"] == PAUSE_S * 1000

    words = "crashed 4 times in a row, next try "
    for command in ("ps", "nodes", "explain demo", "doctor"):
        shown = puna(own_cluster, *command.split())
        assert words in shown.stdout, f"{command}: {shown.stdout}{shown.stderr}"
        if command in ("explain demo", "doctor"):
            assert "`puna load demo:latest` tries it at once" in shown.stdout
    assert json.loads(puna(own_cluster, "ps", "--json").stdout)["crash_rows"] == [row]
    assert json.loads(puna(own_cluster, "nodes", "--json").stdout)["nodes"][0]["crash_rows"] == [row]
    assert "puna load demo:latest" in puna(own_cluster, "devices", "clear", "demo").stderr

    loaded = puna(own_cluster, "load", "demo")
    assert loaded.returncode == 0, loaded.stderr
    assert crash_rows(own_cluster) == []
    assert len(runner_pids(own_cluster)) == 1
    assert words not in puna(own_cluster, "ps").stdout
    since_crash.assert_within(PAUSE_S + LOAD_S, "the model answers after three crashes", took_s=answered_s)


def test_the_page_shows_a_model_that_crashes_and_its_load_button_tries_it_at_once(
    browser: "Browser", tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    from tests.e2e.browser_page import opened  # the other test does without a driver of browsers

    engine = {"PUNA_ENGINE": "fake", "PUNA_ENGINE_OPTIONS": json.dumps({"tokens_per_s": 20.0})}
    cluster = start_cluster(tmp_path / "home", **engine)
    try:
        for number in range(3):
            kill_while_it_answers(cluster, number, {})
        assert [row["crashes"] for row in crash_rows(cluster)] == [3], "else the page has nothing to show"
        with opened(browser, cluster.url) as page:
            page.wait_live()
            node = page.page.locator(".node").first
            expect(node.locator(".reason").first).to_contain_text("demo:latest crashed 3 times in a row, next try ")
            page.photograph("fleet-crashes")
            page.go("Models")
            card = page.page.get_by_role("article", name="Model demo:latest")
            expect(card.locator("header .badge")).to_have_text("crashes")
            expect(card.locator(".doing")).to_contain_text("the runner was ended by signal 9 (SIGKILL)")
            page.photograph("models-crashes")
            card.get_by_role("button", name="Load demo:latest").click()
            expect(card.locator("header .badge")).to_have_text("ready")
            # The other view hears it with the next look at the nodes. Before, its line would go while it is looked at.
            expect(node.locator(".reason").first).to_have_js_property("hidden", True)
            page.go("Fleet")
            expect(node.locator(".reason").first).to_be_hidden()
            page.check()
    finally:
        cluster.stop()
