"""Targets that Prometheus finds through a gateway."""

import pytest

from common.network import reachable
from gateway.models.scrape_targets import OwnAddresses, scrape_targets
from protos import cluster_pb2, discovery_pb2

OWN = OwnAddresses(metrics="0.0.0.0:9100", http="10.0.0.1:11434", scheduler="scheduler:7602, other:7602")


def runner(name: str, *, address: str, metrics: str, state: str = "READY") -> cluster_pb2.RunnerRecord:
    return cluster_pb2.RunnerRecord(
        placement=cluster_pb2.PlacementRef(placement_id=f"place-{name}"),
        model_name=name,
        address=address,
        metrics_address=metrics,
        status=cluster_pb2.RunnerStatus(state=cluster_pb2.RunnerState.Value(f"RUNNER_STATE_{state}")),
    )


def inventory(*runners: cluster_pb2.RunnerRecord) -> discovery_pb2.Inventory:
    node = cluster_pb2.Node(id="node-1", address="host:7603", metrics_address="0.0.0.0:9100", runners=runners)
    return discovery_pb2.Inventory(
        nodes=[node], metrics_address="discovery:9100", scheduler_metrics_address="[::]:9100"
    )


def test_every_process_is_a_target_with_labels() -> None:
    groups = scrape_targets(inventory(runner("demo:latest", address="host:4000", metrics="0.0.0.0:4001")), OWN)
    assert groups == [
        {"targets": ["10.0.0.1:9100"], "labels": {"service": "gateway"}},
        {"targets": ["scheduler:9100"], "labels": {"service": "scheduler"}},
        {"targets": ["discovery:9100"], "labels": {"service": "discovery"}},
        {"targets": ["host:9100"], "labels": {"service": "host", "node": "node-1"}},
        {
            "targets": ["host:4001"],
            "labels": {
                "service": "runner",
                "node": "node-1",
                "model": "demo:latest",
                "placement": "place-demo:latest",
            },
        },
    ]


def test_pages_for_other_machines_have_tls_where_processes_have_certificates() -> None:
    own = OwnAddresses(metrics="127.0.0.1:9100", http="127.0.0.1:11434", scheduler="")
    groups = scrape_targets(inventory(), own, secured=True)
    schemes = {str(group["targets"]): group["labels"].get("__scheme__") for group in groups}
    assert schemes == {
        "['127.0.0.1:9100']": None,
        "['[::]:9100']": "https",
        "['discovery:9100']": "https",
        "['host:9100']": "https",
    }


def test_runners_without_a_page_and_dead_ones_are_no_targets() -> None:
    starting = runner("a:latest", address="", metrics="", state="LAUNCHED")
    dead = runner("b:latest", address="host:4000", metrics="host:4001", state="ERROR")
    groups = scrape_targets(inventory(starting, dead), OWN)
    assert [group["labels"]["service"] for group in groups if isinstance(group["labels"], dict)] == [
        "gateway",
        "scheduler",
        "discovery",
        "host",
    ]


@pytest.mark.parametrize(
    ("dialled", "target"),
    [
        ("gateway:11434", "gateway:9100"),
        ("puna.example", "puna.example:9100"),
        ("[fd00::1]", "[fd00::1]:9100"),
        ("[fd00::1]:11434", "[fd00::1]:9100"),
        ("", "0.0.0.0:9100"),
    ],
)
def test_a_gateway_that_listens_everywhere_is_scraped_where_it_was_dialled(dialled: str, target: str) -> None:
    own = OwnAddresses(metrics="0.0.0.0:9100", http="0.0.0.0:11434", scheduler="scheduler:7602")
    assert scrape_targets(inventory(), own, dialled=dialled)[0]["targets"] == [target]


def test_addresses_that_mean_any_host_are_dialled_where_the_process_is_known() -> None:
    assert reachable("0.0.0.0:9100", "host:7603") == "host:9100"
    assert reachable("[::]:9100", "[fd00::1]:7603") == "[fd00::1]:9100"
    assert reachable("127.0.0.1:4001", "host:7603") == "127.0.0.1:4001"
    assert reachable("page.example:4001", "host:7603") == "page.example:4001"
    assert reachable("0.0.0.0:9100", "unix:/run/x.sock") == "0.0.0.0:9100"
    assert reachable("0.0.0.0:9100", "a:7602,b:7602") == "a:9100"
    assert reachable("", "host:7603") == ""
