"""Refusals name the nearest context that fits, and it loads: on a device whose memory really ends."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.cluster import Cluster, start_cluster
from tests.limited_device import LimitedDevice, limited_device
from tests.waiting import wait_until

DEVICE_MIB = 100
TOKENS = 2048
SLOTS = 8


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, LimitedDevice]]:
    """A cluster with one device that is too small for the demo model with so many slots of so many tokens."""
    with limited_device(mib=DEVICE_MIB) as device:
        cluster = start_cluster(tmp_path_factory.mktemp("refusals") / "p", PUNA_RPC_DEVICES=device.address)
        try:
            yield cluster, device
        finally:
            cluster.stop()


def want(cluster: Cluster, **constraints: Any) -> None:
    url = f"{cluster.url}/puna/v1/placements/demo"
    httpx.put(url, json={"require_gpu": True, **constraints}, timeout=60).raise_for_status()


def generate(cluster: Cluster, *, num_ctx: int) -> httpx.Response:
    options = {"num_ctx": num_ctx, "num_predict": 4}
    return cluster.post("/api/generate", {"model": "demo", "prompt": "Hello", "stream": False, "options": options})


def explained(cluster: Cluster, **asked: Any) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(
        f"{cluster.url}/puna/v1/explain", params={"model": "demo", **asked}, timeout=60
    ).json()
    return found


def leave(cluster: Cluster, device: LimitedDevice) -> None:
    cluster.post("/api/generate", {"model": "demo", "keep_alive": 0})
    wait_until(lambda: device.used_bytes() == 0, deadline_s=60, what="the device is empty again")


@pytest.mark.behaviour("B-61")
def test_every_configuration_that_a_refusal_names_loads_and_the_one_that_was_refused_does_not(
    limited: tuple[Cluster, LimitedDevice],
) -> None:
    cluster, device = limited
    want(cluster, slots=SLOTS)
    refused = generate(cluster, num_ctx=TOKENS)
    assert refused.status_code == 500
    text = refused.json()["error"]
    need = re.match(r"model requires more system memory \(([\d.]+) MiB\) than is available \(([\d.]+) MiB\)", text)
    assert need is not None, text
    assert float(need[1]) > float(need[2])
    assert float(need[2]) <= DEVICE_MIB
    assert explained(cluster, last=1)["message"] == text
    assert device.used_bytes() == 0

    tokens, slots = re.search(r"num_ctx (\d+)", text), re.search(r"with (\d+) slots?", text)
    assert tokens is not None, text
    assert slots is not None, text
    named = [(int(tokens[1]), SLOTS), (TOKENS, int(slots[1]))]
    if "cache type q8_0" in text:
        named.append((TOKENS, SLOTS))
    for num_ctx, slot_count in named:
        small = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"} if (num_ctx, slot_count) == (TOKENS, SLOTS) else {}
        want(cluster, slots=slot_count, **small)
        answer = generate(cluster, num_ctx=num_ctx)
        assert answer.status_code == 200, answer.text
        assert answer.json()["response"]
        assert 0 < device.used_bytes() <= DEVICE_MIB * 1024 * 1024
        assert [one["context_length"] >= num_ctx for one in explained(cluster)["replicas"]] == [True]
        leave(cluster, device)
