"""The only node of a real cluster is taken out of use and put back, from the command line."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster import Cluster, start_cluster

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = start_cluster(tmp_path / "home")
    try:
        yield running
    finally:
        running.stop()


def puna(cluster: Cluster, *words: str) -> str:
    """Run a command and return its output."""
    command = [sys.executable, "-m", "cli.main", *words]
    environment = os.environ | {"PUNA_HOST": cluster.url}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return answer.stdout


def the_node(cluster: Cluster) -> dict[str, Any]:
    (node,) = httpx.get(f"{cluster.url}/puna/v1/nodes", timeout=60).json()["nodes"]
    return dict(node)


def ask(cluster: Cluster) -> httpx.Response:
    body = {"model": "demo", "prompt": "What is 2 + 3?", "stream": False}
    return cluster.post("/api/generate", body)


def test_what_runs_ends_nothing_new_comes_and_afterwards_all_is_as_before(cluster: Cluster) -> None:
    assert ask(cluster).status_code == 200
    name = the_node(cluster)["id"]
    told = puna(cluster, "drain", name, "--wait")
    assert told.splitlines()[0] == f"{name} is draining, 1 replica left"
    assert told.splitlines()[-1] == f"{name} is drained"
    assert (the_node(cluster)["state"], cluster.runners()) == ("drained", [])
    refused = ask(cluster)
    assert refused.status_code == 503
    assert "node_drained" in puna(cluster, "explain", "demo")
    assert puna(cluster, "undrain", name) == f"{name} is in use again\n"
    assert ask(cluster).status_code == 200
    assert the_node(cluster)["state"] == "ready"
