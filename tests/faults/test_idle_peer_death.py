"""A model over two of three nodes idles, and what lends to it dies: nobody has to ask before that is seen.

It is kept by `replicas_min`, so it is placed anew without its dead lender; a model on the third node notices nothing.
"""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.namespaces import Machine, Machines, running_hosts
from tests.faults.conftest import BYSTANDER
from tests.waiting import wait_until

SIZES = {"num_ctx": 24_576, "require_gpu": True}


def want(hosts: Machines, model: str, **constraints: Any) -> None:
    httpx.put(f"{hosts.url}/puna/v1/placements/{model}", json=constraints, timeout=60).raise_for_status()


def ready(hosts: Machines, model: str) -> dict[str, tuple[str, int]]:
    """Replicas that serve: node and process id by placement and generation."""
    return {
        f"{one['placement']}.{one['generation']}": (node, one["pid"])
        for node, one in hosts.runners()
        if one["model"].startswith(model) and one["state"] in ("ready", "no_slots")
    }


def served(hosts: Machines, model: str) -> dict[str, tuple[str, int]]:
    """The same once the inventory has heard of it, which is after the answer."""
    wait_until(lambda: bool(ready(hosts, model)), deadline_s=60, what=f"a replica of {model} is shown")
    return ready(hosts, model)


def lends_to(hosts: Machines, machine: Machine, models: list[str]) -> bool:
    """Return True if the machine's devices serve just these models of other nodes, as /puna/v1/nodes says."""
    devices = [device for node in hosts.nodes() if node["id"] == machine.name for device in node["devices"]]
    return bool(devices) and [one["model"] for device in devices for one in device["lent_to"]] == models


@pytest.mark.timeout(900)
def test_a_peer_that_dies_under_an_idle_model_is_noticed_and_the_model_placed_anew(
    tmp_path: Path, big_model: Path
) -> None:
    with running_hosts(tmp_path, big_model, names=("a", "b", "c"), device_mib=512) as hosts:
        answered = hosts.answer("big", **SIZES)
        assert answered.status_code == 200, answered.text
        ((name, (head, _)),) = served(hosts, "big").items()
        others = [one for one in hosts.machines.values() if one.name != head]
        lender = next(one for one in others if one.devices[0].used_bytes() > 0)
        (third,) = [one.name for one in others if one is not lender]
        wait_until(
            lambda: lends_to(hosts, lender, ["big:latest"]), deadline_s=60, what="the device says whom it serves"
        )
        want(hosts, BYSTANDER, nodes=[third], num_gpu=0)
        assert hosts.answer(BYSTANDER).status_code == 200
        bystander = served(hosts, BYSTANDER)
        want(hosts, "big", replicas_min=1, **SIZES)

        lender.devices[0].kill()  # and nobody asks for anything
        wait_until(lambda: name not in ready(hosts, "big"), deadline_s=120, what="the placement has ended")
        wait_until(lambda: len(ready(hosts, "big")) == 1, deadline_s=240, what="the model is placed anew")
        wait_until(lambda: lends_to(hosts, lender, []), deadline_s=60, what="the dead device serves nobody")
        assert ready(hosts, BYSTANDER) == bystander
        again = hosts.answer("big", **SIZES)
        assert again.status_code == 200, again.text
