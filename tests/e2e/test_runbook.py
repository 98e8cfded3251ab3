"""Faults of a running cluster, and what the runbook says of them: its metrics move, and its alerts fire.

Rows without a case need what this cluster lacks: a second node, a device that breaks, hours, or an operator's mistake.
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from common.process_faults import Killed, ProcessFault, Stopped
from tests.cluster import Cluster, start_cluster
from tests.prometheus import Prometheus, start_prometheus
from tests.waiting import wait_until
from tools.runbook import FAULTS, Fault

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (make deps-system)"
)

SEEN_DEADLINE_S = 60.0
OVER_DEADLINE_S = 90.0


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
        wait_until(lambda: ask(watched.cluster) == 200, deadline_s=60, what="the model answers")
        assert "PunaReplicasCrash" not in watched.fires(), f"after {number} deaths"
        # What a node says of its runner may be older than its answer.
        wait_until(lambda: len(watched.serving()) == 1, deadline_s=30, what="the runner is listed")
        (runner,) = watched.serving()
        before = watched.prometheus.value(lost)
        fault = Killed(runner["pid"])
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
