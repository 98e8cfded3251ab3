"""Messages of hosts are checked at the border."""

import pytest

from common.errors import InvalidRequest
from discovery.converters import ID_LENGTH_MAX, Models, to_report
from discovery.core.membership import Membership, NodeSection, apply_report
from discovery.servicer import Sending
from protos import cluster_pb2, discovery_pb2


def host_report() -> discovery_pb2.HostReport:
    message = discovery_pb2.HostReport(node_id="a", incarnation="x", started_at_unix_ms=1)
    message.facts.address = "h:1"
    message.devices.devices.add(id="cpu")
    message.models.SetInParent()
    message.runners.SetInParent()
    return message


def test_an_empty_list_is_a_section_and_a_missing_one_is_not() -> None:
    message = host_report()
    assert set(to_report(message, stream=1).sections) == set(NodeSection)
    message.ClearField("models")
    assert NodeSection.MODELS not in to_report(message, stream=1).sections


@pytest.mark.parametrize("field", ["node_id", "incarnation"])
@pytest.mark.parametrize("value", ["", "n" * (ID_LENGTH_MAX + 1)])
def test_ids_that_are_missing_or_too_long_are_refused(field: str, value: str) -> None:
    message = host_report()
    setattr(message, field, value)
    with pytest.raises(InvalidRequest) as caught:
        to_report(message, stream=1)
    assert caught.value.param == field


def test_the_inventory_shows_nodes_by_id_with_the_age_of_their_last_report() -> None:
    membership = Membership()
    for node_id, stream in (("b", 1), ("a", 2)):
        message = host_report()
        message.node_id = node_id
        membership = apply_report(membership, to_report(message, stream=stream), now_s=10.0)
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
        membership = apply_report(membership, to_report(message, stream=stream), now_s=10.0)

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
    report = to_report(message, stream=1)
    models = report.sections[NodeSection.MODELS]
    assert isinstance(models, Models)
    assert models.skipped == names[1:]
    membership = apply_report(Membership(), report, now_s=10.0)
    (node,) = Sending(changes_only=False, started_at_s=4.0).next(membership, 10.5).nodes
    assert [model.name for model in node.models] == ["good:latest"]
