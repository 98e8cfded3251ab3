"""Options that a request set for a replica outlive its process, and the scheduler that placed it."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx

from tests.cluster import Cluster
from tests.waiting import wait_until

ASK = {"model": "demo", "messages": [{"role": "user", "content": "What is Puna?"}], "stream": False}
OPTIONS = {"num_ctx": 768, "num_thread": 1, "num_batch": 96, "temperature": 0}


def served(cluster: Cluster, body: dict[str, Any]) -> bool:
    try:
        return cluster.post("/api/chat", body).status_code == 200
    except httpx.TransportError:
        return False


def processes(cluster: Cluster) -> list[int]:
    """Of runners of the demo model that live."""
    return [one["pid"] for one in cluster.runners() if one["model"].startswith("demo") and one["state"] != "error"]


def started_with(pid: int) -> tuple[int, int, int]:
    """Context, threads and batch on the command line of a runner."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    layout = json.loads(words[words.index("--layout") + 1])
    return layout["context_tokens"], layout.get("threads", 0), layout["batch_tokens"]


def lose_runner(cluster: Cluster, pid: int) -> int:
    """Kill it, and ask without a word about options; the process that answers."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: served(cluster, ASK), deadline_s=120, what="the model answers again")
    wait_until(lambda: set(processes(cluster)) - {pid} != set(), deadline_s=60, what="the new runner is shown")
    (new,) = set(processes(cluster)) - {pid}
    return new


def test_a_killed_runner_comes_back_as_it_was_asked_for_also_by_another_scheduler(own_cluster: Cluster) -> None:
    assert served(own_cluster, ASK | {"options": OPTIONS})
    (first,) = processes(own_cluster)
    assert started_with(first) == (768, 1, 96)
    second = lose_runner(own_cluster, first)
    assert started_with(second) == (768, 1, 96)

    killed = own_cluster.pid_of("scheduler")
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: own_cluster.pid_of("scheduler") not in (0, killed), deadline_s=60, what="another scheduler runs")
    third = lose_runner(own_cluster, second)
    assert started_with(third) == (768, 1, 96)

    own_cluster.post("/api/generate", {"model": "demo", "keep_alive": 0})
    wait_until(lambda: processes(own_cluster) == [], deadline_s=60, what="the model is unloaded")
    assert served(own_cluster, ASK)
    (fourth,) = processes(own_cluster)
    assert started_with(fourth) != (768, 1, 96)  # nobody asked for that any more
