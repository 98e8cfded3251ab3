"""Nodes come, speak, fall silent and go."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InvalidRequest, PlacementMismatch, QueueFull
from discovery.core.membership import (
    NODES_MAX,
    Membership,
    NodeSection,
    Report,
    apply_disconnect,
    apply_report,
    apply_time,
    next_check_s,
)

EVERYTHING: dict[NodeSection, object] = {section: f"{section.value} 1" for section in NodeSection}
SILENCE_S = 2.0


def report(
    *, stream: int = 1, node_id: str = "a", incarnation: str = "x", started: int = 100, **sections: object
) -> Report:
    given_sections = {NodeSection(name): content for name, content in sections.items()} or EVERYTHING
    return Report(
        node_id=node_id,
        incarnation=incarnation,
        started_at_unix_ms=started,
        stream=stream,
        sections=given_sections,
    )


def registered() -> Membership:
    return apply_report(Membership(), report(), now_s=0.0)


def test_a_node_is_in_the_inventory_after_its_first_report() -> None:
    membership = registered()
    assert set(membership.nodes) == {"a"}
    assert membership.version == 2


def test_a_first_report_without_every_section_is_refused_and_names_what_lacks() -> None:
    with pytest.raises(InvalidRequest, match="devices, models, runners"):
        apply_report(Membership(), report(facts="f"), now_s=0.0)


def test_a_later_report_replaces_only_the_sections_it_has() -> None:
    membership = apply_report(registered(), report(devices="devices 2"), now_s=1.0)
    assert membership.nodes["a"].sections == {**EVERYTHING, NodeSection.DEVICES: "devices 2"}


def test_a_heartbeat_without_news_makes_no_new_version() -> None:
    before = registered()
    after = apply_report(before, report(devices="devices 1"), now_s=1.0)
    assert after.version == before.version
    assert after.nodes["a"].reported_at_s == 1.0


def test_a_broken_stream_removes_its_node_at_once() -> None:
    membership = apply_disconnect(registered(), node_id="a", stream=1)
    assert membership.nodes == {}
    assert membership.version == 3


def test_the_end_of_an_old_stream_leaves_the_new_registration_alone() -> None:
    membership = apply_report(registered(), report(stream=2), now_s=1.0)
    assert apply_disconnect(membership, node_id="a", stream=1) is membership


def test_a_newer_host_process_replaces_an_older_one() -> None:
    membership = apply_report(registered(), report(stream=2, incarnation="y", started=200), now_s=1.0)
    assert membership.nodes["a"].incarnation == "y"


def test_an_older_host_process_is_refused_while_a_newer_one_is_registered() -> None:
    with pytest.raises(PlacementMismatch):
        apply_report(registered(), report(stream=2, incarnation="y", started=50), now_s=1.0)


def test_a_replaced_host_cannot_come_back_through_its_still_open_stream() -> None:
    membership = apply_report(registered(), report(stream=2, incarnation="y", started=200), now_s=1.0)
    with pytest.raises(PlacementMismatch):
        apply_report(membership, report(stream=1), now_s=2.0)


def test_a_message_of_the_stream_before_a_redial_is_refused() -> None:
    membership = apply_report(registered(), report(stream=2), now_s=1.0)
    with pytest.raises(PlacementMismatch):
        apply_report(membership, report(stream=1, devices="old"), now_s=2.0)


def test_silence_makes_a_node_suspect_and_a_word_makes_it_well_again() -> None:
    silent = apply_time(registered(), now_s=2.1, silence_s_max=SILENCE_S)
    assert silent.nodes["a"].suspect
    well = apply_report(silent, report(devices="devices 1"), now_s=2.2)
    assert not well.nodes["a"].suspect
    assert well.version > silent.version > registered().version


def test_a_node_that_reports_in_time_is_not_suspect() -> None:
    membership = registered()
    assert apply_time(membership, now_s=2.0, silence_s_max=SILENCE_S) is membership


def test_the_next_check_is_due_when_the_longest_silent_node_could_become_suspect() -> None:
    membership = apply_report(registered(), report(node_id="b", stream=2), now_s=1.0)
    assert next_check_s(membership, silence_s_max=SILENCE_S) == 2.0
    assert next_check_s(Membership(), silence_s_max=SILENCE_S) is None


def test_the_inventory_takes_so_many_nodes_and_no_more() -> None:
    node = registered().nodes["a"]
    full = Membership(nodes={str(number): node for number in range(NODES_MAX)})
    with pytest.raises(QueueFull):
        apply_report(full, report(), now_s=0.0)
    assert len(apply_report(full, report(node_id="7", stream=2), now_s=0.0).nodes) == NODES_MAX


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(1, 4), st.sampled_from(["report", "disconnect", "time"])),
        max_size=40,
    )
)
def test_versions_never_fall_and_every_node_is_complete(events: list[tuple[str, int, str]]) -> None:
    membership = Membership()
    for now_s, (node_id, stream, kind) in enumerate(events):
        before = membership
        if kind == "report":
            try:
                membership = apply_report(
                    membership, replace(report(stream=stream), node_id=node_id), now_s=float(now_s)
                )
            except PlacementMismatch:
                assert before.nodes[node_id].stream > stream
        elif kind == "disconnect":
            membership = apply_disconnect(membership, node_id=node_id, stream=stream)
        else:
            membership = apply_time(membership, now_s=float(now_s), silence_s_max=SILENCE_S)
        assert membership.version >= before.version
        assert all(set(node.sections) == set(NodeSection) for node in membership.nodes.values())
