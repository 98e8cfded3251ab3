"""Nodes as people see them."""

from typing import Any

import pytest

from gateway.converters.inventory import inventory_nodes
from protos import cluster_pb2, discovery_pb2


def shown(device: cluster_pb2.Device, *, report_age_ms: int = 0) -> dict[str, object]:
    node = cluster_pb2.Node(id="n", devices=[device], report_age_ms=report_age_ms)
    (page,) = inventory_nodes(discovery_pb2.Inventory(nodes=[node]))
    devices = page["devices"]
    assert isinstance(devices, list)
    first: dict[str, object] = devices[0]
    return first


@pytest.mark.behaviour("B-131")
def test_a_figure_is_as_old_as_the_reading_and_the_report_together() -> None:
    device = cluster_pb2.Device(id="GPU-1", free_age_ms=400, trust=cluster_pb2.TRUST_MEASURED)
    assert (shown(device)["free_age_ms"], shown(device)["trust"]) == (400, "measured")
    silent = shown(device, report_age_ms=1700)
    assert (silent["free_age_ms"], silent["trust"]) == (2100, "stale")


@pytest.mark.behaviour("B-130")
def test_a_device_that_is_left_out_shows_how_its_test_ended() -> None:
    device = cluster_pb2.Device(
        id="GPU-1",
        type=cluster_pb2.DEVICE_TYPE_INTEGRATED,
        state=cluster_pb2.DEVICE_STATE_EXCLUDED,
        state_reason="its test failed: signal 6",
        check_exit_code=-6,
        check_last_line="no kernel image",
        max_bytes=5,
    )
    page = shown(device)
    assert (page["state"], page["state_reason"]) == ("excluded", "its test failed: signal 6")
    assert (page["check_exit_code"], page["check_last_line"]) == (-6, "no kernel image")
    assert (page["class"], page["max_bytes"]) == ("integrated", 5)


def test_what_the_driver_of_a_card_does_not_say_is_null() -> None:
    vitals = cluster_pb2.DeviceVitals(temperature_c=84, throttled=["power"], last_xid=79, last_xid_at_unix_s=5)
    page = shown(cluster_pb2.Device(id="GPU-1", vitals=vitals))["vitals"]
    assert isinstance(page, dict)
    assert (page["temperature_c"], page["power_w"], page["throttled"], page["last_xid"]) == (84, None, ["power"], 79)
    assert shown(cluster_pb2.Device(id="cpu"))["vitals"] is None


def test_a_model_that_crashes_on_a_node_is_shown_there_with_its_next_try() -> None:
    row = cluster_pb2.CrashRow(
        model_name="m:latest", node_id="n", crashes=3, last_at_unix_ms=5000, retry_at_unix_ms=7000, error="signal 9"
    )
    (page,) = inventory_nodes(discovery_pb2.Inventory(nodes=[cluster_pb2.Node(id="n", crash_rows=[row])]))
    shown = {"model": "m:latest", "node": "n", "crashes": 3, "last_at_unix_ms": 5000, "retry_at_unix_ms": 7000}
    assert page["crash_rows"] == [{**shown, "excluded_until_unix_ms": None, "error": "signal 9"}]


def test_what_is_not_known_is_null_and_not_zero() -> None:
    page = shown(cluster_pb2.Device(id="cpu"))
    assert page["check_exit_code"] is page["max_bytes"] is page["speed_bytes_s"] is page["driver"] is None


def test_a_device_shows_the_speed_that_ranks_it_and_where_that_comes_from() -> None:
    def speeds(**known: Any) -> tuple[object, object, object]:
        page = shown(cluster_pb2.Device(id="GPU-1", **known))
        return page["speed_bytes_s"], page["speed_source"], page["copy_bytes_s"]

    like = cluster_pb2.SPEED_SOURCE_LIKE_DEVICES
    assert speeds() == (None, None, None)
    assert speeds(speed_bytes_s=900, rank_bytes_s=550, rank_source=like) == (550, "like devices", 900)
    # A device as its host answers for it, without the scheduler.
    assert speeds(speed_bytes_s=900) == (900, "probe copy", 900)
    assert speeds(speed_bytes_s=900, decode_bytes_s=600) == (600, "replicas", 900)


def test_a_device_that_serves_a_placement_of_another_node_says_so() -> None:
    layout = cluster_pb2.Layout(
        devices=[
            cluster_pb2.DeviceLayers(device_id="gpu", layer_count=3, node_id="far"),
            cluster_pb2.DeviceLayers(device_id="gpu", layer_count=2),
        ]
    )
    runner = cluster_pb2.RunnerRecord(
        placement=cluster_pb2.PlacementRef(placement_id="p", generation=1), model_name="m:latest", layout=layout
    )
    nodes = [
        cluster_pb2.Node(id="far", devices=[cluster_pb2.Device(id="gpu"), cluster_pb2.Device(id="other")]),
        cluster_pb2.Node(id="near", devices=[cluster_pb2.Device(id="gpu")], runners=[runner]),
    ]

    def lent() -> list[object]:
        page = inventory_nodes(discovery_pb2.Inventory(nodes=nodes))
        found = [device for node in page if isinstance(node["devices"], list) for device in node["devices"]]
        return [device["lent_to"] for device in found]

    assert lent() == [[{"placement": "p", "model": "m:latest", "node": "near"}], [], []]
    runner.status.state = cluster_pb2.RUNNER_STATE_ERROR
    nodes[1] = cluster_pb2.Node(id="near", devices=[cluster_pb2.Device(id="gpu")], runners=[runner])
    assert lent() == [[], [], []]


def test_a_node_shows_what_its_tiers_of_saved_conversations_hold() -> None:
    tier = cluster_pb2.StateTier(tier="ram", bytes=5, max_bytes=9, states=2)
    (page,) = inventory_nodes(discovery_pb2.Inventory(nodes=[cluster_pb2.Node(id="n", state_tiers=[tier])]))
    assert page["states"] == [{"tier": "ram", "bytes": 5, "max_bytes": 9, "states": 2}]
