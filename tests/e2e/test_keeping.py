"""Two models where memory is enough for one: who stays, who goes, when, and why."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import MAXYEAR, UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster import Cluster, start_cluster
from tests.waiting import Stopwatch, wait_until
from tools.model_zoo import build

CAP = {"PUNA_DEVICE_MAX_BYTES": "cpu=220MiB", "PUNA_DEVICE_OVERHEAD": "cpu=0"}
KEEP_ALIVE_S = 4.0
# Machines are busy; what was to go has gone by then.
GRACE_S = 15.0
# Where the time of a report is turned into one of the calendar.
ROUNDING_S = 1.0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster with two models whose memory is enough for one."""
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    build("dense", home / "models").rename(home / "models" / "tiny.gguf")
    running = start_cluster(home, **CAP)
    try:
        yield running
    finally:
        running.stop()


def puna(cluster: Cluster, *words: str) -> str:
    """Run a command and return its output."""
    answer = subprocess.run(
        [sys.executable, "-m", "cli.main", *words],
        env=os.environ | {"PUNA_HOST": cluster.url},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return answer.stdout + answer.stderr


def loaded(cluster: Cluster) -> set[str]:
    return {model["name"] for model in httpx.get(cluster.url + "/api/ps", timeout=60).json()["models"]}


def expiry(cluster: Cluster, model: str) -> datetime | None:
    """Return the time at which a model expires; None: it has gone."""
    models = httpx.get(cluster.url + "/api/ps", timeout=60).json()["models"]
    return next((datetime.fromisoformat(one["expires_at"]) for one in models if one["name"] == model), None)


def stays(cluster: Cluster, model: str, *, for_ever: bool) -> bool:
    """Return True if a model stays for ever, or else for a time, as wanted."""
    expires_at = expiry(cluster, model)
    return expires_at is not None and (expires_at.year == MAXYEAR) is for_ever


def ask(cluster: Cluster, model: str, keep_alive: object) -> None:
    """One token."""
    body = {"model": model, "prompt": "x", "raw": True, "stream": False, "keep_alive": keep_alive}
    answer = httpx.post(cluster.url + "/api/generate", json=body | {"options": {"num_predict": 1}}, timeout=60)
    assert answer.status_code == 200, answer.text


def explained(cluster: Cluster, model: str, **query: Any) -> dict[str, Any]:
    answer = httpx.get(cluster.url + "/puna/v1/explain", params={"model": model, **query}, timeout=60)
    assert answer.status_code == 200, answer.text
    explanation: dict[str, Any] = answer.json()
    return explanation


def test_one_makes_room_for_the_other_pins_are_kept_keep_alive_is_exact_and_all_of_it_is_explained(
    small: Cluster,
) -> None:
    assert puna(small, "load", "demo", "--keep-alive", "-1").split()[-1] == "ready"
    assert loaded(small) == {"demo:latest"}
    first = explained(small, "demo", last=1)
    (chosen,) = [one for one in first["candidates"] if one["verdict"] == "chosen"]
    (device,) = chosen["devices"]
    classes = ("weights", "cache", "graph", "projector", "reserve", "margin")
    assert device["need_bytes"] == sum(device[f"{name}_bytes"] for name in classes) <= device["available_bytes"]
    (replica,) = first["replicas"]
    assert 0 < replica["allocated_bytes"] < device["need_bytes"]

    # Idle and past its first moments, it goes for the other one.
    assert puna(small, "load", "tiny", "--keep-alive", "-1").split()[-1] == "ready"
    assert loaded(small) == {"tiny:latest"}

    # A pinned one would not go; without the pin it would, and is named.
    puna(small, "placements", "tiny", "pinned")
    refused = explained(small, "demo")
    assert refused["outcome"] == "insufficient_memory"
    assert {candidate["verdict"] for candidate in refused["candidates"]} == {"short_bytes"}
    assert "short_bytes" in puna(small, "explain", "demo")
    assert puna(small, "placements", "tiny", "--forget").strip() == "forgotten"
    wait_until(lambda: explained(small, "demo")["outcome"] == "placed", deadline_s=20, what="tiny is old enough to go")
    assert [victim["model"] for victim in explained(small, "demo")["victims"]] == ["tiny:latest"]

    # The newest one holds, told to the replica or to the scheduler, also if it is the same as one before.
    for keep_alive, is_for_ever in (("5m", False), (-1, True), ("5m", False)):
        if is_for_ever:
            assert puna(small, "load", "tiny", "--keep-alive", f"{keep_alive}").split()[-1] == "ready"
        else:
            ask(small, "tiny", keep_alive)
        wait_until(
            partial(stays, small, "tiny:latest", for_ever=is_for_ever), deadline_s=20, what=f"{keep_alive} holds"
        )

    # The newest keep_alive counts from its acceptance: not less, and at most a report and a look more.
    since_before = Stopwatch()
    assert puna(small, "load", "tiny", "--keep-alive", f"{KEEP_ALIVE_S}").split()[-1] == "ready"
    told_at, since_told = datetime.now(UTC), Stopwatch()
    wait_until(
        lambda: (expiry(small, "tiny:latest") or told_at) < told_at + timedelta(minutes=1),
        deadline_s=20,
        what="it is known",
    )
    # Nobody waits for a request, which a load does not announce.
    assert (expiry(small, "tiny:latest") or told_at) <= told_at + timedelta(seconds=KEEP_ALIVE_S + ROUNDING_S)
    wait_until(lambda: loaded(small) == set(), deadline_s=KEEP_ALIVE_S + 20, what="keep_alive has ended")
    assert since_before.wall_s >= KEEP_ALIVE_S
    since_told.assert_within(KEEP_ALIVE_S + GRACE_S, "the model is unloaded")
