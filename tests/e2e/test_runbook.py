"""Faults of a running cluster, and what the runbook says of them: the alerts of their rows become active."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from common.process_faults import Killed, Stopped
from tests.cluster import Cluster, start_cluster
from tests.prometheus import Prometheus, start_prometheus
from tests.waiting import wait_until
from tools.runbook import FAULTS

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (make deps-system)"
)

ACTIVE_DEADLINE_S = 40.0
# The service that is stopped, by row, with those of its alerts that a cluster of one machine can show. They are pending
# first: alerts wait until a fault has lasted.
STOPPED = {
    "the scheduler is stopped": ("scheduler", {"PunaRoutesLost", "PunaNoLeader", "PunaTargetDown"}),
    "discovery dies or is stopped": ("discovery", {"PunaInventoryStale", "PunaTargetDown"}),
    "a host process is stopped": ("host", {"PunaNodeSilent", "PunaTargetDown"}),
    "Redis is away": ("redis", {"PunaStoreDown"}),
}


@dataclass(frozen=True, kw_only=True)
class Watched:
    cluster: Cluster
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A cluster with a warm model, under Prometheus."""
    directory = tmp_path_factory.mktemp("runbook")
    cluster = start_cluster(directory / "home")
    try:
        assert ask(cluster) == 200
        prometheus = start_prometheus(directory, cluster.url)
        try:
            wait_until(lambda: prometheus.value("count(up == 1)") >= 5, deadline_s=30, what="every process is scraped")
            yield Watched(cluster=cluster, prometheus=prometheus)
        finally:
            prometheus.stop()
    finally:
        cluster.stop()


def ask(cluster: Cluster) -> int:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "stream": False}
    return cluster.post("/api/chat", body).status_code


def active(prometheus: Prometheus) -> set[str]:
    return {one["metric"]["alertname"] for one in prometheus.query("ALERTS")}


def alerts_of(name: str) -> set[str]:
    (fault,) = [fault for fault in FAULTS if fault.name == name]
    return set(fault.alerts)


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_service_shows_the_alerts_of_its_row_and_warm_models_answer(watched: Watched, name: str) -> None:
    service, wanted = STOPPED[name]
    assert wanted <= alerts_of(name)
    wait_until(lambda: not active(watched.prometheus) & wanted, deadline_s=60, what="nothing is wrong")
    fault = Stopped(watched.cluster.pid_of(service))
    fault.inject()
    try:
        wait_until(fault.has_happened, deadline_s=5, what=f"{service} is stopped")
        assert ask(watched.cluster) == 200
        wait_until(
            lambda: wanted <= active(watched.prometheus), deadline_s=ACTIVE_DEADLINE_S, what=f"{wanted} are active"
        )
    finally:
        fault.heal()
    wait_until(lambda: not active(watched.prometheus) & wanted, deadline_s=60, what="the alerts are over")


def test_runners_that_die_show_the_alert_of_their_row(watched: Watched) -> None:
    """An alert after the second one: a single crash is nothing to wake anybody for."""
    assert "PunaReplicasCrash" in alerts_of("a runner dies")
    for _ in range(2):
        wait_until(lambda: ask(watched.cluster) == 200, deadline_s=60, what="the model answers")
        (runner,) = watched.cluster.runners()
        lost = watched.prometheus.value("sum(puna_scheduler_replicas_lost_total)")
        fault = Killed(runner["pid"])
        fault.inject()
        wait_until(fault.has_happened, deadline_s=5, what="the runner is dead")

        def is_counted(before: float = lost) -> bool:
            return watched.prometheus.value("sum(puna_scheduler_replicas_lost_total)") > before

        wait_until(is_counted, deadline_s=20, what="the loss is counted")
    wait_until(
        lambda: "PunaReplicasCrash" in active(watched.prometheus), deadline_s=ACTIVE_DEADLINE_S, what="the alert fires"
    )
