"""Faults of a running cluster, and what the runbook says of them: its metrics move, and its alerts fire.

Rows without one need what this cluster lacks: a network between nodes, a driver, certificates, hours, a full log disk.
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
from tests.limited_device import LimitedDevice, limited_device
from tests.prometheus import Prometheus, start_prometheus
from tests.second_host import SecondHost
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
    device: LimitedDevice  # of the node, too small for a model

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
    with limited_device(mib=4) as device:
        cluster = start_cluster(directory / "home", PUNA_RPC_DEVICES=device.address)
        try:
            assert ask(cluster) == 200
            prometheus = start_prometheus(directory, cluster.url, waits="1s")
            try:
                wait_until(
                    lambda: prometheus.value("count(up == 1)") >= 5, deadline_s=60, what="every process is scraped"
                )
                yield Watched(cluster=cluster, prometheus=prometheus, device=device)
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


def test_the_second_death_of_a_runner_fires_an_alert_and_the_third_in_a_row_another_one(watched: Watched) -> None:
    lost = "sum(puna_scheduler_replicas_lost_total)"
    alerts = {2: "PunaReplicasCrash", 3: "PunaModelCrashesInARow"}
    assert alerts[2] in row_of("a runner dies").alerts
    assert set(alerts.values()) <= set(row_of("a model crashes again and again on a node").alerts)
    for deaths in (1, 2, 3):
        runner = watched.runner()
        before = watched.prometheus.value(lost)
        fault = Killed(runner)
        fault.inject()
        wait_until(fault.has_happened, deadline_s=5, what="the runner is dead")
        wait_until(
            lambda before=before: watched.prometheus.value(lost) > before,  # type: ignore[misc]  # bound in the loop
            deadline_s=30,
            what="the loss is counted",
        )
        wanted = {alert for count, alert in alerts.items() if count <= deaths}
        wait_until(
            lambda wanted=wanted: wanted <= watched.fires(),  # type: ignore[misc]  # bound in the loop
            deadline_s=SEEN_DEADLINE_S,
            what=f"{wanted} after {deaths} deaths",
        )
        assert not watched.fires() & (set(alerts.values()) - wanted), f"after {deaths} deaths"
    watched.cluster.post("/puna/v1/load", {"model": "demo"}).raise_for_status()  # as the row says


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


@contextmanager
def blocked_event_loop(watched: Watched) -> Iterator[None]:
    with broken(Stopped(watched.cluster.pid_of("gateway"))):
        wait_until(
            lambda: bool(watched.prometheus.query('up{service="gateway"} == 0')),
            deadline_s=SEEN_DEADLINE_S,
            what="a page of the gateway is missing",
        )
    yield


@contextmanager
def another_host(watched: Watched, node_id: str) -> Iterator[SecondHost]:
    host = SecondHost(watched.cluster, node_id)
    try:
        yield host
    finally:
        host.stop()


@contextmanager
def copied_home(watched: Watched) -> Iterator[None]:
    (node,) = httpx.get(f"{watched.cluster.url}/puna/v1/nodes", timeout=60).json()["nodes"]
    with another_host(watched, node["id"]):
        yield


@contextmanager
def node_without_power(watched: Watched) -> Iterator[None]:
    with another_host(watched, "b") as host:
        wait_until(
            lambda: watched.prometheus.value('puna_discovery_nodes{state="ok"}') == 2,
            deadline_s=SEEN_DEADLINE_S,
            what="the second node is there",
        )
        fault = Killed(host.pid)
        fault.inject()
        yield


@contextmanager
def full_device(watched: Watched) -> Iterator[None]:
    watched.device.take()
    yield
    watched.device.give_back()


@contextmanager
def lost_device(watched: Watched) -> Iterator[None]:
    watched.device.kill()
    yield


# What makes a row happen, a query of the row's metric, whose value rises, and an alert of the row, if it has one that
# fires within minutes. The last one does not heal.
ACTS: Mapping[str, tuple[Callable[[Watched], AbstractContextManager[None]], str, str]] = {
    "a model file is damaged or hostile": (
        damaged_file, 'puna_host_models{state="unusable"}', "PunaModelUnusable",
    ),
    "a client leaves, reads slowly or sends nothing": (
        client_that_leaves, 'sum(puna_gateway_requests_total{outcome="canceled"})', "",
    ),
    "answers end with errors": (
        more_than_can_wait, 'sum(puna_gateway_requests_total{outcome="queue_full"})', "",
    ),
    "a runner is stopped or starved": (silent_runner, '-sum(puna_gateway_replicas{state="ready"})', ""),
    "the engine thread hangs, for example in a GPU driver": (
        hung_engine, "sum(puna_host_runner_ends_total)", "",
    ),
    "Redis comes back empty, or has lost its last writes": (
        empty_store, "sum(puna_scheduler_leadership_changes_total)", "",
    ),
    "an event loop is blocked, or the machine has no processor time": (
        blocked_event_loop,
        'sum(puna_event_loop_lag_seconds_count) - sum(puna_event_loop_lag_seconds_bucket{le="0.5"})',
        "",  # of one in a hundred
    ),
    "a second host speaks for a node, or a node registers again and again": (
        copied_home, 'puna_discovery_reports_total{result="refused"}', "PunaReportsRefused",
    ),
    "a node reboots, loses its power or its network": (
        node_without_power, 'changes(puna_discovery_nodes{state="ok"}[2m])', "PunaNodeGone",
    ),
    "another process takes a device's memory": (full_device, "-min(puna_host_device_free_bytes)", ""),
    "a device is lost": (lost_device, 'sum(puna_discovery_device_state{state="lost"})', "PunaDeviceLost"),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTS)
def test_a_row_that_no_service_makes_shows_its_metric_and_its_alert(watched: Watched, name: str) -> None:
    make, query, alert = ACTS[name]
    row = row_of(name)
    assert set(re.findall(r"puna_\w+", re.sub(r"(lag_seconds)_\w+", r"\1", query))) <= set(
        re.findall(r"puna_\w+", row.seen)
    )
    assert not alert or alert in row.alerts
    watched.await_quiet({alert})
    before = watched.prometheus.value(query)
    with make(watched):
        wait_until(
            lambda: watched.prometheus.value(query) > before,
            deadline_s=SEEN_DEADLINE_S,
            what=f"{query} is above {before}",
        )
        wait_until(lambda: {alert} - {""} <= watched.fires(), deadline_s=SEEN_DEADLINE_S, what=f"{alert} fires")
