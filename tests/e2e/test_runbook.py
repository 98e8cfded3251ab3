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
# The service that is stopped, by row, with those of its alerts that a cluster of one machine can show: one of each set.
# They are pending first: alerts wait until a fault has lasted.
STOPPED: dict[str, tuple[str, tuple[set[str], ...]]] = {
    "the scheduler is stopped": ("scheduler", ({"PunaRoutesLost"}, {"PunaNoLeader"}, {"PunaTargetDown"})),
    "discovery dies or is stopped": ("discovery", ({"PunaInventoryStale"}, {"PunaTargetDown"})),
    # Discovery gives up the silent connection after 8 s.
    "a host process is stopped": ("host", ({"PunaNodeSilent", "PunaNodeGone"}, {"PunaTargetDown"})),
    "Redis is away": ("redis", ({"PunaStoreDown"},)),
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
    every = set().union(*wanted)
    assert every <= alerts_of(name)
    wait_until(lambda: not active(watched.prometheus) & every, deadline_s=60, what="nothing is wrong")
    fault = Stopped(watched.cluster.pid_of(service))
    fault.inject()
    try:
        wait_until(fault.has_happened, deadline_s=5, what=f"{service} is stopped")
        assert ask(watched.cluster) == 200

        def are_active() -> bool:
            seen = active(watched.prometheus)
            return all(seen & alternatives for alternatives in wanted)

        wait_until(are_active, deadline_s=ACTIVE_DEADLINE_S, what=f"{wanted} are active")
    finally:
        fault.heal()
    wait_until(lambda: not active(watched.prometheus) & every, deadline_s=60, what="the alerts are over")


def test_runners_that_die_show_the_alert_of_their_row(watched: Watched) -> None:
    """A single crash is no alert. Prometheus does not see the first one as an increase: its series begins with it."""
    assert "PunaReplicasCrash" in alerts_of("a runner dies")
    for _ in range(3):
        wait_until(lambda: ask(watched.cluster) == 200, deadline_s=60, what="the model answers")
        (runner,) = [one for one in watched.cluster.runners() if one["state"] in ("ready", "no_slots")]
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
