"""A whole cluster with a device that an RPC server lends: shown, used, and survived when it dies."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster import Cluster, start_cluster
from tests.limited_device import limited_device
from tests.waiting import wait_until

QUESTION = {"role": "user", "content": "What is Puna?"}


def chat(cluster: Cluster) -> tuple[int, str]:
    body = {"model": "demo", "messages": [QUESTION], "stream": False, "options": {"temperature": 0}}
    answer = cluster.post("/api/chat", body)
    return answer.status_code, answer.json().get("message", {}).get("content", answer.text)


def shown(cluster: Cluster, device_id: str) -> dict[str, Any]:
    (node,) = httpx.get(cluster.url + "/puna/v1/nodes", timeout=60).json()["nodes"]
    found: dict[str, Any] = next(device for device in node["devices"] if device["id"] == device_id)
    return found


@pytest.mark.behaviour("B-130", "B-131")
def test_a_lent_device_is_used_and_when_it_dies_the_model_comes_back_elsewhere(tmp_path: Path) -> None:
    with limited_device(mib=700) as device:
        cluster = start_cluster(tmp_path / "p", PUNA_RPC_DEVICES=device.address)
        try:
            status, text = chat(cluster)
            assert status == 200
            assert device.used_bytes() > 0
            wait_until(
                lambda: shown(cluster, device.id)["promised_bytes"] >= device.used_bytes(),
                deadline_s=20,
                what="what the model holds is promised",
            )
            wait_until(  # the device was measured just before it was used
                lambda: (used := shown(cluster, device.id))["state"] == "ok" and used["trust"] == "predicted",
                deadline_s=20,
                what="what it has left is predicted",
            )
            used = shown(cluster, device.id)
            assert used["free_source"] == "promised"
            assert used["free_bytes"] <= used["total_bytes"] - device.used_bytes() + 1024 * 1024

            device.kill()
            wait_until(lambda: chat(cluster) == (200, text), deadline_s=60, what="the same answer without the device")
            wait_until(lambda: shown(cluster, device.id)["state"] == "lost", deadline_s=60, what="it is shown as lost")
            assert device.address in shown(cluster, device.id)["state_reason"]
        finally:
            cluster.stop()
