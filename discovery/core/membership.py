"""Membership of nodes and their last reports. Pure: events in, a new membership out.

A node is in the inventory exactly while a registration stream of it is open. What a report carries is opaque here:
a section is kept as it came, until a later report replaces it.

| event | node unknown | same stream | other stream, not newer host | other stream, newer host or the same |
|---|---|---|---|---|
| reported | added if complete, else refused | sections replaced | refused | replaces the registration |
| disconnected | nothing | removed | nothing | nothing |
| passed time | nothing | suspect once silent for too long | | |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from common.errors import InvalidRequest, PlacementMismatch, QueueFull

# What one inventory message and one scheduler can sensibly hold.
NODES_MAX = 1000
FULL_RETRY_S = 10.0


class NodeSection(StrEnum):
    """The parts of a report."""

    FACTS = "facts"
    DEVICES = "devices"
    MODELS = "models"
    RUNNERS = "runners"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Message of a registration stream. `stream` distinguishes streams, also of the same host process."""

    node_id: str
    incarnation: str
    started_at_unix_ms: int
    stream: int
    sections: Mapping[NodeSection, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Report):
    """One registered node. `sections` holds every Section."""

    reported_at_s: float
    suspect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Every node by id. `version` grows with each change that a watcher should see."""

    nodes: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))
    version: int = 1


def apply_report(membership: Membership, report: Report, *, now_s: float) -> Membership:
    """Take in one report.

    Raises:
        InvalidRequest: a node cannot be added from parts; the host sends everything.
        PlacementMismatch: another, newer process of this host is registered; the host ends.
        QueueFull: the inventory has no place for another one; the host tries again later.
    """
    known = membership.nodes.get(report.node_id)
    if known is None or known.stream != report.stream:
        return _register(membership, known, report, now_s=now_s)
    changed = any(known.sections[section] != content for section, content in report.sections.items())
    node = replace(
        known,
        sections=MappingProxyType({**known.sections, **report.sections}),
        reported_at_s=now_s,
        suspect=False,
    )
    return _with_node(membership, node, visible=changed or known.suspect)


def apply_disconnect(membership: Membership, *, node_id: str, stream: int) -> Membership:
    """Remove the node whose stream broke, unless another stream has taken its place."""
    known = membership.nodes.get(node_id)
    if known is None or known.stream != stream:
        return membership
    nodes = {other_id: node for other_id, node in membership.nodes.items() if other_id != node_id}
    return Membership(nodes=MappingProxyType(nodes), version=membership.version + 1)


def apply_time(membership: Membership, *, now_s: float, silence_s_max: float) -> Membership:
    """Mark the nodes that have been silent for longer than `silence_s_max` as suspect."""
    for node in membership.nodes.values():
        if not node.suspect and now_s - node.reported_at_s > silence_s_max:
            membership = _with_node(membership, replace(node, suspect=True), visible=True)
    return membership


def next_check_s(membership: Membership, *, silence_s_max: float) -> float | None:
    """Return when the next node could become suspect, on the clock of `now_s`; None if no node can."""
    waiting = [node.reported_at_s for node in membership.nodes.values() if not node.suspect]
    return min(waiting) + silence_s_max if waiting else None


def _register(membership: Membership, known: Member | None, report: Report, *, now_s: float) -> Membership:
    if known is not None:
        is_same_host = known.incarnation == report.incarnation
        # A message of the stream before the present one, still under way when the host dialled again.
        is_late = is_same_host and report.stream < known.stream
        if is_late or (not is_same_host and report.started_at_unix_ms <= known.started_at_unix_ms):
            raise PlacementMismatch(f"a newer host process speaks for this node: {known.incarnation}")
    elif len(membership.nodes) >= NODES_MAX:
        raise QueueFull(f"{NODES_MAX} nodes are registered", retry_after_s=FULL_RETRY_S)
    missing = [section.value for section in NodeSection if section not in report.sections]
    if missing:
        raise InvalidRequest(f"the first report lacks {', '.join(missing)}")
    node = Member(
        node_id=report.node_id,
        incarnation=report.incarnation,
        started_at_unix_ms=report.started_at_unix_ms,
        stream=report.stream,
        sections=MappingProxyType(dict(report.sections)),
        reported_at_s=now_s,
    )
    return _with_node(membership, node, visible=True)


def _with_node(membership: Membership, node: Member, *, visible: bool) -> Membership:
    nodes = MappingProxyType({**membership.nodes, node.node_id: node})
    return Membership(nodes=nodes, version=membership.version + (1 if visible else 0))
