"""Messages of hosts are checked at the border."""

import pytest

from common.errors import InvalidRequest
from common.telemetry.skipped_rows import BAD_NAME
from discovery.converters import CLOCK_SLACK_S, ID_LENGTH_MAX, take_out_bad_rows, to_report
from discovery.core.membership import Membership, NodeSection, apply_report
from discovery.servicer import Sending
from protos import cluster_pb2, discovery_pb2

NOW_S = 1_790_000_000.0


def host_report() -> discovery_pb2.HostReport:
    message = discovery_pb2.HostReport(node_id="a", incarnation="x", started_at_unix_ms=1)
    message.facts.address = "h:1"
    message.devices.devices.add(id="cpu")
    message.models.SetInParent()
    message.runners.SetInParent()
    return message


def test_an_empty_list_is_a_section_and_a_missing_one_is_not() -> None:
    message = host_report()
    assert set(to_report(message, stream=1, wall_unix_s=NOW_S).sections) == set(NodeSection)
    message.ClearField("models")
    assert NodeSection.MODELS not in to_report(message, stream=1, wall_unix_s=NOW_S).sections


@pytest.mark.parametrize("field", ["node_id", "incarnation"])
@pytest.mark.parametrize("value", ["", "n" * (ID_LENGTH_MAX + 1)])
def test_ids_that_are_missing_or_too_long_are_refused(field: str, value: str) -> None:
    message = host_report()
    setattr(message, field, value)
    with pytest.raises(InvalidRequest) as caught:
        to_report(message, stream=1, wall_unix_s=NOW_S)
    assert caught.value.param == field


def test_the_inventory_shows_nodes_by_id_with_the_age_of_their_last_report() -> None:
    membership = Membership()
    for node_id, stream in (("b", 1), ("a", 2)):
        message = host_report()
        message.node_id = node_id
        membership = apply_report(membership, to_report(message, stream=stream, wall_unix_s=NOW_S), now_s=10.0)
    inventory = Sending(changes_only=False, started_at_s=4.0).next(membership, 10.5)
    assert [node.id for node in inventory.nodes] == ["a", "b"]
    assert inventory.nodes[0].report_age_ms == 500
    assert inventory.nodes[0].devices == [cluster_pb2.Device(id="cpu")]
    assert inventory.uptime_ms == 6500


def test_what_is_long_about_a_model_comes_once_to_each_watcher() -> None:
    membership = Membership()
    for node_id, stream in (("a", 1), ("b", 2)):
        message = host_report()
        message.node_id = node_id
        message.models.models.add(name="m:latest", digest="d").description.chat_template = "{{ messages }}"
        membership = apply_report(membership, to_report(message, stream=stream, wall_unix_s=NOW_S), now_s=10.0)

    def templates(sending: Sending) -> list[str]:
        inventory = sending.next(membership, 10.5)
        return [model.description.chat_template for node in inventory.nodes for model in node.models]

    first, late = (Sending(changes_only=False, started_at_s=4.0) for _ in range(2))
    assert templates(first) == ["{{ messages }}", ""]  # two nodes with one file
    assert templates(first) == ["", ""]
    assert templates(late) == ["{{ messages }}", ""]


def test_a_model_whose_name_is_none_is_left_out_of_the_inventory_and_kept_for_the_log() -> None:
    message = host_report()
    names = ("good:latest", "my model (1):latest", "-lead:latest")
    for name in names:
        message.models.models.add(name=name, digest="d")
    assert take_out_bad_rows(message)["models"] == dict.fromkeys(names[1:], BAD_NAME)
    report = to_report(message, stream=1, wall_unix_s=NOW_S)
    membership = apply_report(Membership(), report, now_s=10.0)
    (node,) = Sending(changes_only=False, started_at_s=4.0).next(membership, 10.5).nodes
    assert [model.name for model in node.models] == ["good:latest"]


def test_rows_with_impossible_numbers_are_left_out_and_the_others_stay() -> None:
    message = host_report()
    message.devices.devices.add(id="gpu", free_bytes=2**64 - 1)
    message.models.models.add(name="m:latest").description.memory.layer_weights_bytes.extend((1, 2**63))
    message.runners.runners.add().status.load_fraction = float("nan")
    skipped = take_out_bad_rows(message)
    assert skipped["devices"] == {"gpu": f'"free_bytes" must be from 0 to {2**60}, not {2**64 - 1}'}
    assert "description.memory.layer_weights_bytes" in skipped["models"]["m:latest"]
    assert skipped["runners"] == {"": '"status.load_fraction" must be finite, not nan'}
    assert [device.id for device in message.devices.devices] == ["cpu"]
    assert (len(message.models.models), len(message.runners.runners)) == (0, 0)


def test_facts_with_impossible_numbers_are_refused() -> None:
    message = host_report()
    message.facts.models_free_bytes = 2**64 - 1
    with pytest.raises(InvalidRequest, match="models_free_bytes") as caught:
        to_report(message, stream=1, wall_unix_s=NOW_S)
    assert caught.value.param == "models_free_bytes"


@pytest.mark.parametrize(
    ("ahead_s", "believed"), [(-60.0, True), (CLOCK_SLACK_S, True), (CLOCK_SLACK_S + 1, False), (1e13, False)]
)
def test_a_start_in_the_future_counts_as_the_oldest(ahead_s: float, believed: bool) -> None:
    message = host_report()
    message.started_at_unix_ms = round((NOW_S + ahead_s) * 1000)
    found = to_report(message, stream=1, wall_unix_s=NOW_S).started_at_unix_ms
    assert found == (message.started_at_unix_ms if believed else 0)
