"""Whole clusters that the tests of this directory hurt, each with several replicas of one model."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, start_cluster
from tests.waiting import wait_until
from tools.model_zoo import build, shape
from tools.model_zoo.recipe import WeightType

READY_WITHIN_S = 90.0
BYSTANDER = "dense"
StartReplicas = Callable[..., Cluster]


def ready_pids(cluster: Cluster) -> set[int]:
    """Process ids of the runners that serve."""
    return {runner["pid"] for runner in cluster.runners() if runner["state"] in ("ready", "no_slots")}


def wait_for_replicas(cluster: Cluster, count: int, *, without: frozenset[int] = frozenset()) -> set[int]:
    """Process ids of the runners once so many serve."""
    wait_until(
        lambda: len(ready_pids(cluster) - without) >= count,
        deadline_s=READY_WITHIN_S,
        what=f"{count} replicas serve",
    )
    return ready_pids(cluster) - without


def busiest(cluster: Cluster, streams: int) -> int:
    """Process id of the runner with most of so many streams, once the inventory has heard of all of them."""
    found: dict[int, int] = {}

    def all_are_shown() -> bool:
        runners = [one for one in cluster.runners() if one["state"] in ("ready", "no_slots")]
        found.clear()
        found.update({one["pid"]: one["slots_busy"] for one in runners})
        return sum(found.values()) == streams

    wait_until(all_are_shown, deadline_s=30, what=f"{streams} streams are shown")
    return max(found, key=lambda pid: (found[pid], pid))


@pytest.fixture
def big_model(tmp_path: Path) -> Path:
    """A directory with a model ("big") that no single device of these tests holds, and a tiny one."""
    models = tmp_path / "models"
    models.mkdir()
    recipe = replace(
        shape("57m"), name="big", weights=WeightType.F16, vocabulary_tokens=1024, kv_heads=8, context_tokens=1 << 16
    )
    build(recipe, models)
    build(BYSTANDER, models)
    return models


@pytest.fixture
def start_replicas(tmp_path: Path) -> Iterator[StartReplicas]:
    """Start a cluster with so many replicas of the demo model, of the fake engine if `fake` has its options."""
    clusters: list[Cluster] = []

    def start(count: int, *, fake: dict[str, Any] | None = None, **environment: str) -> Cluster:
        wanted = tmp_path / "placements.toml"
        wanted.write_text(f'[models."demo"]\nreplicas_min = {count}\nreplicas_max = {count}\n')
        settings = {"PUNA_PLACEMENTS": str(wanted), "PUNA_KEEP_ALIVE": "-1", "PUNA_NUM_PARALLEL": "8"}
        if fake is not None:
            settings |= {"PUNA_ENGINE": "fake", "PUNA_ENGINE_OPTIONS": json.dumps(fake)}
        cluster = start_cluster(tmp_path / f"home{len(clusters)}", **(settings | environment))
        clusters.append(cluster)
        wait_for_replicas(cluster, count)
        return cluster

    yield start
    for cluster in clusters:
        cluster.stop()
