"""Placed by what was measured, or by formulas: either says so, and what the model really takes stands beside."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster import Cluster, metric_sum, start_cluster
from tests.waiting import wait_until

ERROR_BYTES_MAX = 32 * 1024 * 1024


def scheduler_page(cluster: Cluster) -> str:
    services = json.loads((cluster.home / "run" / "puna.json").read_text())["services"]
    return httpx.get(f"http://{services['scheduler']['metrics_address']}/metrics", timeout=60).text


@pytest.mark.behaviour("B-72", "B-152")
@pytest.mark.parametrize("measure", ["on", "off"])
def test_figures_say_where_they_come_from_and_are_the_same_wherever_they_are_shown(
    tmp_path: Path, measure: str
) -> None:
    cluster = start_cluster(tmp_path / "p", PUNA_MEASURE=measure)
    try:
        answer = cluster.post("/api/generate", {"model": "demo", "prompt": "Hello", "stream": False})
        assert answer.status_code == 200
        asked = httpx.get(cluster.url + "/puna/v1/explain", params={"model": "demo", "last": 1}, timeout=60)
        explained: dict[str, Any] = asked.json()
        (chosen,) = [one for one in explained["candidates"] if one["verdict"] == "chosen"]
        assert chosen["estimated"] is (measure == "off")
        wait_until(
            lambda: metric_sum(scheduler_page(cluster), "puna_scheduler_allocated_bytes") > 0,
            deadline_s=20,
            what="the inventory shows the runner",
        )
        (replica,) = httpx.get(asked.url, timeout=60).json()["replicas"]
        classes = ("weights", "cache", "graph", "projector")
        counted = sum(device[f"{name}_bytes"] for device in chosen["devices"] for name in classes)
        assert replica["predicted_bytes"] == counted
        page = scheduler_page(cluster)
        planned, allocated, residual, promised = (
            metric_sum(page, f"puna_scheduler_{name}_bytes")
            for name in ("planned", "allocated", "residual", "promised")
        )
        assert (planned, allocated) == (replica["predicted_bytes"], replica["allocated_bytes"])
        assert residual == allocated - planned
        assert promised >= max(planned, allocated)
        if measure == "on":
            assert abs(residual) <= max(ERROR_BYTES_MAX, 0.02 * allocated)
    finally:
        cluster.stop()
