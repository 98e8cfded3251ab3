"""A cluster whose disk is full, or whose output is not read: it loses log lines, and nothing else."""

import os
import signal
from pathlib import Path

import httpx

from tests.cluster import Cluster, metric_sum, start_cluster
from tests.full_disk import small_disk
from tests.full_pipe import full_pipe
from tests.waiting import wait_until

REQUESTS = 40
HEALED_WITHIN_S = 60.0


def answers(cluster: Cluster) -> bool:
    body = {"model": "demo", "prompt": "What is Puna?", "stream": False, "options": {"num_predict": 4}}
    return cluster.post("/api/generate", body).status_code == 200


def scheduler_pids(cluster: Cluster) -> set[int]:
    """From the kernel: the state file cannot be written."""
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in cluster.members()}
    return {pid for pid, line in words.items() if b"scheduler" in line and b"cli.child" not in line}


def dropped_lines(cluster: Cluster) -> float:
    return metric_sum(httpx.get(cluster.url + "/metrics", timeout=60).text, "puna_log_lines_dropped_total")


def test_a_full_disk_fails_no_request_keeps_no_service_down_and_heals_by_itself(tmp_path: Path) -> None:
    with small_disk(tmp_path / "home", megabytes=60) as disk:
        cluster = start_cluster(disk.path)
        try:
            assert answers(cluster)
            disk.fill()
            assert [answers(cluster) for _ in range(REQUESTS)] == [True] * REQUESTS
            wait_until(lambda: dropped_lines(cluster) > 0, deadline_s=10, what="log lines are counted as dropped")

            killed = cluster.pid_of("scheduler")
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda: scheduler_pids(cluster) - {killed} != set(), deadline_s=30, what="a new scheduler")
            assert answers(cluster)

            disk.free()
            wait_until(
                lambda: cluster.pid_of("scheduler") in scheduler_pids(cluster),
                deadline_s=HEALED_WITHIN_S,
                what="the state file names the new scheduler",
            )
            wait_until(
                lambda: httpx.get(cluster.url + "/puna/v1/nodes", timeout=60).status_code == 200,
                deadline_s=HEALED_WITHIN_S,
                what="the new scheduler leads",
            )
            assert answers(cluster)
            log = disk.path / "logs" / "gateway.log"
            wait_until(lambda: "log.lines_dropped" in log.read_text(), deadline_s=10, what="the log says so")
        finally:
            cluster.stop()


def test_puna_up_starts_restarts_and_stops_services_while_its_output_is_not_read(tmp_path: Path) -> None:
    with full_pipe() as pipe:
        cluster = start_cluster(tmp_path / "home", output=f"/dev/fd/{pipe}")
        try:
            killed = cluster.pid_of("discovery")
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda: cluster.pid_of("discovery") not in (0, killed), deadline_s=30, what="it is back")
            assert answers(cluster)
        finally:
            cluster.stop()
