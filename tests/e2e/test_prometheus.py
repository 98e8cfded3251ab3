"""A real Prometheus on a real cluster: every panel has lines, and every rule has something to look at."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import yaml

from tests.cluster import Cluster, endless, metric_sum, start_cluster
from tests.prometheus import PROMETHEUS, ROOT, Prometheus, grouping, selectors, start_prometheus
from tests.waiting import wait_until
from tools.metrics_catalogue import MODULES, entries

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (make deps-system)"
)

DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
DATA_DEADLINE_S = 40.0
QUESTION = [{"role": "user", "content": "What is Puna?"}]
# Metrics with labels that nothing has happened to yet in such a cluster.
SILENT = {
    "puna_gateway_retries_total",  # a replica that refuses, or dies before its first event
    "puna_gateway_key_store_up",
    "puna_config_generation",  # of keys and certificates
    "puna_scheduler_crashes_in_a_row",  # from the third crash on
    "puna_runner_drafted_tokens_total",  # on request, where the measured time of calls pays
    # Readings of NVIDIA cards; tests/integration/host/test_gpu_drivers.py reads them from a driver.
    *(
        f"puna_{service}_device_{reading}"
        for service in ("host", "discovery")
        for reading in ("utilization_ratio", "temperature_celsius", "power_watts", "throttled", "errors")
    ),
}
# Labels that are there only while something is wrong.
ABSENT_UNLESS_WRONG = {("ALERTS", "alertname"), ("ALERTS", "alertstate")}


@dataclass(frozen=True, kw_only=True)
class Watched:
    cluster: Cluster
    prometheus: Prometheus


def query_of(expr: str) -> str:
    """Build the query that Grafana would send: all models, all nodes."""
    return re.sub(r"\$(model|node)\b", ".*", expr.replace("$__rate_interval", "1m"))


def panel_queries() -> list[tuple[str, str]]:
    """Return the queries of all panels with their places, without those of silent metrics alone."""
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            found += [
                (f"{path.stem}: {panel['title']}", query_of(target["expr"]))
                for target in panel.get("targets", [])
                if not {name for name, _ in selectors(target["expr"])} <= SILENT
            ]
    return found


def rules() -> list[dict[str, Any]]:
    files = [
        yaml.safe_load((PROMETHEUS / name).read_text(encoding="utf-8")) for name in ("recording.yml", "alerts.yml")
    ]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A cluster under Prometheus, after everything has happened once that metrics tell of."""
    directory = tmp_path_factory.mktemp("watched")
    cluster = start_cluster(directory / "home")
    try:
        prometheus = start_prometheus(directory, cluster.url)
        try:
            let_everything_happen(cluster)
            yield Watched(cluster=cluster, prometheus=prometheus)
        finally:
            prometheus.stop()
    finally:
        cluster.stop()


def let_everything_happen(cluster: Cluster) -> None:
    """Load, answers in several dialects, a refusal, a stop, and a runner that dies under a stream."""
    chat = {"model": "demo", "messages": QUESTION, "options": {"num_predict": 24}}
    completion = {"model": "demo", "messages": QUESTION, "max_tokens": 24, "stream": True}
    assert cluster.post("/api/chat", chat | {"stream": False}).status_code == 200
    refused = cluster.post("/puna/v1/load", {"model": "demo", "options": {"require_gpu": True}})
    assert "error" in refused.text
    assert cluster.post("/puna/v1/unload", {"model": "demo"}).status_code == 200
    wait_until(lambda: not cluster.runners(), deadline_s=20, what="the replica is gone")
    with ThreadPoolExecutor(6) as pool:
        bodies = itertools.chain.from_iterable(
            [("/api/chat", chat), ("/v1/chat/completions", completion)] for _ in range(6)
        )
        answers = list(pool.map(lambda one: cluster.post(*one), bodies))
    assert {answer.status_code for answer in answers} == {200}
    kill_a_runner_under_a_stream(cluster)
    assert cluster.post("/api/chat", chat | {"stream": False}).status_code == 200


def kill_a_runner_under_a_stream(cluster: Cluster) -> None:
    """The stream goes on at the next runner."""
    body = {"model": "demo", "messages": QUESTION, "options": endless(cluster)}
    (runner,) = cluster.runners()
    with httpx.stream("POST", cluster.url + "/api/chat", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(runner["pid"], signal.SIGKILL)
        wait_until(lambda: next(lines) is not None and resumes(cluster) == 1, deadline_s=60, what="the answer goes on")


def resumes(cluster: Cluster) -> float:
    return metric_sum(httpx.get(cluster.url + "/metrics", timeout=30).text, "puna_gateway_resumes_total")


@contextmanager
def under_load(cluster: Cluster) -> Iterator[None]:
    """Somebody asks all the time: ratios of an idle model have no value."""
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            cluster.post("/api/chat", {"model": "demo", "messages": QUESTION, "stream": False})

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            yield
        finally:
            stop.set()
        for one in asking:
            one.result()


def test_every_process_is_found_and_scraped(watched: Watched) -> None:
    def up() -> set[str]:
        return {one["metric"]["service"] for one in watched.prometheus.query("up == 1")}

    wait_until(
        lambda: up() == {"gateway", "scheduler", "discovery", "host", "runner"},
        deadline_s=20,
        what="every kind of process is scraped",
    )
    (info,) = watched.prometheus.query('puna_build_info{service="gateway"}')
    assert set(info["metric"]) > {"version", "python", "instance", "job"}
    runners = watched.prometheus.query("puna_runner_slots == puna_runner_slots")
    assert all(one["metric"]["model"] == "demo:latest" and one["metric"]["node"] for one in runners)


def test_every_query_of_every_panel_returns_data(watched: Watched) -> None:
    wanted = dict.fromkeys(panel_queries())
    assert len(wanted) > 80
    missing: list[tuple[str, str]] = list(wanted)

    def complete() -> bool:
        missing[:] = [one for one in missing if not watched.prometheus.query(one[1])]
        return not missing

    try:
        with under_load(watched.cluster):
            wait_until(complete, deadline_s=DATA_DEADLINE_S, what="every panel has data")
    except AssertionError:
        pytest.fail(f"without data: {missing}")


def test_every_label_that_panels_and_rules_use_exists(watched: Watched) -> None:
    """Also of alerts, whose expressions are empty while all is well."""
    exprs = [expr for _, expr in panel_queries()] + [rule["expr"] for rule in rules()]
    wanted = {(name, label) for expr in exprs for name, labels in selectors(expr) for label in labels}
    wanted |= {(name, "") for expr in exprs for name, _ in selectors(expr)}
    wanted -= ABSENT_UNLESS_WRONG | {("ALERTS", "")} | {one for one in wanted if one[0] in SILENT}
    assert len({name for name, _ in wanted}) > 60
    missing = [
        (name, label)
        for name, label in sorted(wanted)
        if not watched.prometheus.query(f'{{__name__="{name}",{label}!=""}}' if label else f'{{__name__="{name}"}}')
    ]
    assert missing == []


def test_labels_that_panels_group_by_are_those_of_the_series(watched: Watched) -> None:
    """A label that no series has would make one line of many."""
    wrong = []
    for where, expr in panel_queries():
        used = grouping(expr) - {"le"}
        shown = {label for one in watched.prometheus.query(expr) for label in one["metric"]}
        known = {label for name, _ in selectors(expr) for label in _labels(watched.prometheus, name)}
        if not used <= known | shown:
            wrong.append((where, used - known))
    assert wrong == []


def _labels(prometheus: Prometheus, name: str) -> set[str]:
    return {label for one in prometheus.query(f'{{__name__="{name}"}}') for label in one["metric"]}


def test_every_recorded_figure_is_there_and_no_rule_fails(watched: Watched) -> None:
    names = [rule["record"] for rule in rules() if "record" in rule]
    wait_until(
        lambda: all(watched.prometheus.query(name) for name in names), deadline_s=20, what="every figure is recorded"
    )
    loaded = [rule for group in watched.prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(loaded) == len(rules())
    assert {rule["name"]: rule["lastError"] for rule in loaded if rule.get("lastError")} == {}
    assert {rule["health"] for rule in loaded} == {"ok"}
    # What happened here, one lost replica among it, is nothing to call anybody for.
    assert watched.prometheus.query('ALERTS{alertstate="firing"}') == []


def test_figures_of_prometheus_are_those_of_the_processes(watched: Watched) -> None:
    """Prometheus has the counts of the processes, not only some counts."""
    prometheus = watched.prometheus
    ok = 'sum(puna_gateway_requests_total{outcome="ok",route="/v1/chat/completions"})'
    wait_until(lambda: prometheus.value(ok) == 6, deadline_s=30, what="six completions are counted")

    def same_tokens() -> bool:
        """The load before this test has ended, and the next scrape has seen the last of it."""
        page = httpx.get(watched.cluster.url + "/metrics", timeout=60).text
        return prometheus.value("sum(puna_gateway_tokens_total)") == metric_sum(page, "puna_gateway_tokens_total")

    wait_until(same_tokens, deadline_s=30, what="all tokens are counted")
    assert prometheus.value('sum(puna_scheduler_evictions_total{reason="unload"})') == 1
    assert prometheus.value('sum(puna_scheduler_loads_total{outcome="ready",model="demo:latest"})') >= 3
    assert prometheus.value("sum(puna_scheduler_replicas_lost_total)") == 1
    assert prometheus.value("sum(puna_scheduler_refusals_total)") >= 1
    assert prometheus.value("max(puna_runner_kv_cells_used / puna_runner_kv_cells)") <= 1
    held = "sum(max by (node, device, class) (puna_scheduler_allocated_bytes))"
    wait_until(
        lambda: prometheus.value(held) == prometheus.value("sum(puna_runner_memory_bytes)") > 0,
        deadline_s=30,
        what="the scheduler shows what the runner holds",
    )


def test_scraping_wakes_no_model(watched: Watched) -> None:
    watched.cluster.post("/puna/v1/unload", {"model": "demo"})
    wait_until(lambda: not watched.cluster.runners(), deadline_s=20, what="the replica is gone")
    loads, scrapes = "sum(puna_scheduler_load_requests_total)", 'sum(count_over_time(up{service="scheduler"}[5m]))'
    before, seen = watched.prometheus.value(loads), watched.prometheus.value(scrapes)
    wait_until(lambda: watched.prometheus.value(scrapes) >= seen + 4, deadline_s=20, what="four scrapes later")
    assert not watched.cluster.runners()
    assert watched.prometheus.value(loads) == before


def test_every_metric_of_the_catalogue_is_told_by_a_process_that_has_it(watched: Watched) -> None:
    """Those of SILENT need a fault or a setting that this cluster has not."""
    silent = []
    for module in MODULES.values():
        for entry in entries(module):
            name = f"{entry.name}_count" if entry.kind == "histogram" else entry.name
            if not watched.prometheus.query(f'last_over_time({{__name__="{name}"}}[10m])'):
                silent.append(entry.name)
    assert set(silent) <= SILENT


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (make deps-system)")
def test_no_page_breaks_a_convention(watched: Watched) -> None:
    watched.cluster.post("/api/chat", {"model": "demo", "messages": QUESTION, "stream": False})
    groups = httpx.get(watched.cluster.url + "/puna/v1/targets", timeout=60).json()
    assert {group["labels"]["service"] for group in groups} == {"gateway", "scheduler", "discovery", "host", "runner"}
    for group in groups:
        page = httpx.get(f"http://{group['targets'][0]}/metrics", timeout=60).text
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False, timeout=30
        )
        said = [line for line in (checked.stdout + checked.stderr).splitlines() if line.startswith("puna_")]
        assert said == [], group
