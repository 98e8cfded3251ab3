"""Faults of a running cluster, and what the runbook says of them: its metrics move, and its alerts fire.

Rows without one need what this cluster lacks: a second node, a device that breaks, hours, or an operator's mistake.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from redis import Redis

from common.process_faults import Killed, ProcessFault, Stopped
from tests.cluster import Cluster, start_cluster
from tests.faults.faults import broken, engine_blocked
from tests.prometheus import Prometheus, start_prometheus
from tests.waiting import wait_until
from tools.runbook import FAULTS, Fault

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (make deps-system)"
)

SEEN_DEADLINE_S = 60.0
OVER_DEADLINE_S = 90.0
CLIENTS = 60  # more than may wait for the model


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row on a cluster of one machine."""

    row: str
    service: str
    fault: type[ProcessFault]
    alerts: tuple[str, ...]  # of the row: those that one machine can show
    seen: str  # a query with a metric of the row; it has an answer while the fault lasts
    answers: bool = True  # the warm model does

    def __str__(self) -> str:
        return self.row


CASES = (
    Case(
        row="the scheduler is stopped",
        service="scheduler",
        fault=Stopped,
        alerts=("PunaRoutesLost", "PunaNoLeader", "PunaTargetDown"),
        seen="puna_gateway_routes_connected == 0",
    ),
    Case(
        row="discovery dies or is stopped",
        service="discovery",
        fault=Stopped,
        alerts=("PunaInventoryStale", "PunaTargetDown"),
        seen="puna_scheduler_inventory_connected == 0",
    ),
    Case(
        row="a host process is stopped",
        service="host",
        fault=Stopped,
        alerts=("PunaNodeGone", "PunaTargetDown"),
        seen='changes(puna_discovery_nodes{state="ok"}[1m]) > 0',
    ),
    Case(
        row="Redis is away",
        service="redis",
        fault=Stopped,
        alerts=("PunaStoreDown",),
        seen="puna_scheduler_store_up == 0",
    ),
    Case(
        row="a gateway dies or is stopped",
        service="gateway",
        fault=Stopped,
        alerts=("PunaTargetDown",),
        seen='up{service="gateway"} == 0',
        answers=False,
    ),
    Case(
        row="a host process dies",
        service="host",
        fault=Killed,
        alerts=("PunaNodeGone",),
        seen='changes(puna_discovery_nodes{state="ok"}[1m]) > 0',
    ),
    Case(
        row="the scheduler dies",
        service="scheduler",
        fault=Killed,
        alerts=("PunaRoutesLost",),
        seen="min_over_time(puna_gateway_routes_connected[30s]) == 0",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Watched:
    cluster: Cluster
    prometheus: Prometheus

    def fires(self) -> set[str]:
        """Name the alerts that fire."""
        return {one["metric"]["alertname"] for one in self.prometheus.query('ALERTS{alertstate="firing"}')}

    def serving(self) -> list[dict[str, Any]]:
        """List the runners that answer, as their nodes say."""
        return [one for one in self.cluster.runners() if one["state"] in ("ready", "no_slots")]

    def runner(self) -> int:
        """Return a process that serves, once the model answers again."""
        wait_until(lambda: ask(self.cluster) == 200, deadline_s=60, what="the model answers")
        # What a node says of its runner may be older than its answer.
        wait_until(lambda: bool(self.serving()), deadline_s=30, what="the runner is listed")
        return int(self.serving()[0]["pid"])

    def await_quiet(self, alerts: set[str]) -> None:
        """Return once none of the alerts fires."""
        wait_until(lambda: not self.fires() & alerts, deadline_s=OVER_DEADLINE_S, what=f"{alerts} are over")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A cluster with a warm model, under a Prometheus whose alerts fire when a fault has lasted for a second."""
    directory = tmp_path_factory.mktemp("runbook")
    cluster = start_cluster(directory / "home")
    try:
        assert ask(cluster) == 200
        prometheus = start_prometheus(directory, cluster.url, waits="1s")
        try:
            wait_until(lambda: prometheus.value("count(up == 1)") >= 5, deadline_s=60, what="every process is scraped")
            yield Watched(cluster=cluster, prometheus=prometheus)
        finally:
            prometheus.stop()
    finally:
        cluster.stop()


def ask(cluster: Cluster) -> int:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "stream": False}
    return cluster.post("/api/chat", body).status_code


def row_of(name: str) -> Fault:
    (fault,) = [fault for fault in FAULTS if fault.name == name]
    return fault


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_row_shows_its_metric_and_its_alerts_and_warm_models_answer(watched: Watched, case: Case) -> None:
    row, wanted = row_of(case.row), set(case.alerts)
    assert wanted <= set(row.alerts)
    assert set(re.findall(r"puna_\w+", case.seen)) <= set(re.findall(r"puna_\w+", row.seen))
    watched.await_quiet(wanted)
    fault = case.fault(watched.cluster.pid_of(case.service))
    # A process that is started again within a second may be away between two scrapes.
    supervisor = Stopped(watched.cluster.process.pid)
    fired: set[str] = set()
    answers: list[object] = []
    try:
        if case.fault is Killed:
            supervisor.inject()
        fault.inject()
        wait_until(fault.has_happened, deadline_s=5, what=f"{case.service} has its fault")
        assert not case.answers or ask(watched.cluster) == 200

        def is_shown() -> bool:
            fired.update(watched.fires() & wanted)
            answers.extend(watched.prometheus.query(case.seen))
            return fired == wanted and bool(answers)

        try:
            wait_until(is_shown, deadline_s=SEEN_DEADLINE_S, what=f"{case.seen}, and {wanted} have fired")
        except AssertionError as error:
            raise AssertionError(f"fired {fired}, {case.seen} answered {answers[:1]}") from error
    finally:
        fault.heal()
        supervisor.heal()
    watched.await_quiet(wanted)


def test_the_second_death_of_a_runner_fires_the_alert_and_the_first_one_does_not(watched: Watched) -> None:
    row, lost = row_of("a runner dies"), "sum(puna_scheduler_replicas_lost_total)"
    assert "PunaReplicasCrash" in row.alerts
    assert "puna_scheduler_replicas_lost_total" in row.seen
    for number in range(2):
        runner = watched.runner()
        assert "PunaReplicasCrash" not in watched.fires(), f"after {number} deaths"
        before = watched.prometheus.value(lost)
        fault = Killed(runner)
        fault.inject()
        wait_until(fault.has_happened, deadline_s=5, what="the runner is dead")
        wait_until(
            lambda before=before: watched.prometheus.value(lost) > before,  # type: ignore[misc]  # bound in the loop
            deadline_s=30,
            what="the loss is counted",
        )
    wait_until(
        lambda: "PunaReplicasCrash" in watched.fires(), deadline_s=SEEN_DEADLINE_S, what="the alert of two deaths fires"
    )


@contextmanager
def damaged_file(watched: Watched) -> Iterator[None]:
    file = watched.cluster.models / "damaged.gguf"
    file.write_bytes(b"GGUF" + bytes(64))
    yield
    file.unlink()


@contextmanager
def client_that_leaves(watched: Watched) -> Iterator[None]:
    body = {"model": "demo", "prompt": "Once", "format": {"type": "string", "minLength": 500}}  # it lasts
    with httpx.stream("POST", f"{watched.cluster.url}/api/generate", json=body, timeout=60) as answer:
        next(answer.iter_lines())
    yield


@contextmanager
def more_than_can_wait(watched: Watched) -> Iterator[None]:
    """Ask while the runner is stopped; those that wait are answered at the next one."""
    runner = watched.runner()
    with ThreadPoolExecutor(CLIENTS) as clients:
        with broken(Stopped(runner)):
            codes = [clients.submit(ask, watched.cluster) for _ in range(CLIENTS)]
            yield
        assert {code.result() for code in codes} == {200, 503}


@contextmanager
def silent_runner(watched: Watched) -> Iterator[None]:
    with broken(Stopped(watched.runner())):
        yield


@contextmanager
def hung_engine(watched: Watched) -> Iterator[None]:
    with broken(engine_blocked(watched.runner())):
        yield


@contextmanager
def empty_store(watched: Watched) -> Iterator[None]:
    with Redis(unix_socket_path=str(watched.cluster.home / "run" / "redis.sock")) as client:
        client.flushall()
    yield
    assert ask(watched.cluster) == 200


# What makes a row happen, and a query of the row's metric, whose value rises.
ACTS: Mapping[str, tuple[Callable[[Watched], AbstractContextManager[None]], str]] = {
    "a model file is damaged or hostile": (damaged_file, 'puna_host_models{state="unusable"}'),
    "a client leaves, reads slowly or sends nothing": (
        client_that_leaves, 'sum(puna_gateway_requests_total{outcome="canceled"})',
    ),
    "answers end with errors": (more_than_can_wait, 'sum(puna_gateway_requests_total{outcome="queue_full"})'),
    "a runner is stopped or starved": (silent_runner, '-sum(puna_gateway_replicas{state="ready"})'),
    "the engine thread hangs, for example in a GPU driver": (hung_engine, "sum(puna_host_runner_ends_total)"),
    "Redis comes back empty, or has lost its last writes": (
        empty_store, "sum(puna_scheduler_leadership_changes_total)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTS)
def test_a_row_that_no_service_makes_shows_its_metric(watched: Watched, name: str) -> None:
    make, query = ACTS[name]
    assert set(re.findall(r"puna_\w+", query)) <= set(re.findall(r"puna_\w+", row_of(name).seen))
    before = watched.prometheus.value(query)
    with make(watched):
        wait_until(
            lambda: watched.prometheus.value(query) > before,
            deadline_s=SEEN_DEADLINE_S,
            what=f"{query} is above {before}",
        )
