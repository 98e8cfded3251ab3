"""Protos to the core's values and back."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from common.clock import MS_PER_S
from common.errors import InvalidRequest
from common.grpc.ranges import find_out_of_range
from common.model_details import CLUSTER_BYTES_MAX, added_bytes, fit_together, name_details, without_details
from common.model_names import is_model_name
from common.telemetry.device_metrics import DeviceRow
from common.telemetry.metrics import Sample
from common.telemetry.skipped_rows import BAD_NAME
from discovery import metrics
from discovery.core.membership import Member, Membership, NodeSection, Report
from protos import cluster_pb2, discovery_pb2

Content = TypeVar("Content")

ID_LENGTH_MAX = 128
CLOCK_SLACK_S = 600.0  # clocks of machines differ; five minutes to either side are provided for
NODE_ITEMS_MAX = 10_000  # models or runners of one node; far above any real one, far below what could exhaust us


@dataclass(frozen=True, slots=True)
class Models:
    """A node's models, with and without what is sent only once. Worked out when they come, because they rarely do."""

    full: discovery_pb2.ModelList
    brief: discovery_pb2.ModelList
    version: int = field(default_factory=itertools.count(1).__next__, compare=False)

    @classmethod
    def of(cls, full: discovery_pb2.ModelList) -> "Models":
        """Return the models of a section as it was received."""
        for model in full.models:
            name_details(model)
        brief = discovery_pb2.ModelList(models=[without_details(model) for model in full.models])
        return cls(full, brief)

    def with_details(self, fresh: set[str]) -> list[cluster_pb2.Model]:
        """Return the models of a message; it has the details of the `fresh` ids, which are taken out."""
        models = []
        for full, brief in zip(self.full.models, self.brief.models, strict=True):
            name = full.description.details_id
            models.append(full if name in fresh else brief)
            fresh.discard(name)
        return models


def leave_out_long_texts(message: discovery_pb2.HostReport, others: Iterable[Models]) -> None:
    """Let the models of all nodes fit in an inventory: those that came first stay, of a report the oldest."""
    left, sent = CLUSTER_BYTES_MAX, set[str]()
    for model in itertools.chain.from_iterable(one.full.models for one in others):
        left -= added_bytes(model, sent)
        sent.add(model.description.details_id)
    for model in message.models.models:
        name_details(model)
    fitting = fit_together(message.models.models, bytes_max=left, of="this cluster", sent=sent)
    message.models.CopyFrom(discovery_pb2.ModelList(models=fitting))


def take_out_bad_rows(message: discovery_pb2.HostReport) -> dict[str, dict[str, str]]:
    """Remove the rows that no service behind this one could take; return their names and the reasons, by section.

    They are models whose name is none, which an older host sends, and rows with a number out of range.
    """
    tables: tuple[tuple[NodeSection, Any, Callable[[Any], str]], ...] = (
        (NodeSection.DEVICES, message.devices.devices, lambda device: str(device.id)),
        (NodeSection.MODELS, message.models.models, lambda model: str(model.name)),
        (NodeSection.RUNNERS, message.runners.runners, lambda runner: str(runner.placement.placement_id)),
    )
    present = {field.name for field, _ in message.ListFields()}
    skipped: dict[str, dict[str, str]] = {}
    for section, rows, name_of in tables:
        if section not in present:
            continue
        skipped[section] = {}
        for index in reversed(range(len(rows))):
            is_named = section != NodeSection.MODELS or is_model_name(rows[index].name)
            reason = find_out_of_range(rows[index]) if is_named else BAD_NAME
            if reason is not None:
                skipped[section][name_of(rows[index])] = str(reason)
                del rows[index]
    return skipped


def believed_start_ms(started_at_unix_ms: int, *, wall_unix_s: float) -> int:
    """Return the start time that a host claims; 0, the oldest, for one that lies in the future.

    Such a host registers if no other process speaks for its node, and gives way to every other one.
    """
    is_past = started_at_unix_ms <= (wall_unix_s + CLOCK_SLACK_S) * MS_PER_S
    return started_at_unix_ms if is_past else 0


def to_report(message: discovery_pb2.HostReport, *, stream: int, wall_unix_s: float) -> Report:
    """Check one message of a registration stream and take it apart.

    Raises:
        InvalidRequest: without ids, absurdly long, or with facts that cannot be.
    """
    for name, value in (("node_id", message.node_id), ("incarnation", message.incarnation)):
        if not value or len(value) > ID_LENGTH_MAX:
            raise InvalidRequest(f"{name} must have 1 to {ID_LENGTH_MAX} characters", param=name)
    present = {field.name: content for field, content in message.ListFields()}
    sections: dict[NodeSection, object] = {one: present[one] for one in NodeSection if one in present}
    if NodeSection.MODELS in sections:
        sections[NodeSection.MODELS] = Models.of(message.models)
    if len(message.models.models) > NODE_ITEMS_MAX or len(message.runners.runners) > NODE_ITEMS_MAX:
        raise InvalidRequest(f"more than {NODE_ITEMS_MAX} models or runners on one node")
    if (nonsense := find_out_of_range(message.facts)) is not None:
        raise InvalidRequest(str(nonsense), param=nonsense.path)
    return Report(
        node_id=message.node_id,
        incarnation=message.incarnation,
        started_at_unix_ms=believed_start_ms(message.started_at_unix_ms, wall_unix_s=wall_unix_s),
        stream=stream,
        sections=sections,
    )


def to_rows(membership: Membership, *, now_s: float) -> Iterator[DeviceRow]:
    """Yield every device of every node for the metrics page; figures of a silent node age."""
    for node in membership.nodes.values():
        report_age_s = max(0.0, now_s - node.reported_at_s)
        for device in _section(node.sections, NodeSection.DEVICES, discovery_pb2.DeviceList).devices:
            yield DeviceRow((node.node_id, device.id), device, report_age_s)


def report_ages(membership: Membership, *, now_s: float) -> Iterator[Sample]:
    """Return the age of each node's last report."""
    for node in membership.nodes.values():
        yield Sample(metrics.REPORT_AGE, max(0.0, now_s - node.reported_at_s), (node.node_id,))


def models_of(node: Member) -> Models:
    """Return a node's models."""
    return _section(node.sections, NodeSection.MODELS, Models)


def to_node(node: Member, models: Models, fresh: set[str] | None, *, now_s: float) -> cluster_pb2.Node:
    """Return a node with its present age. `fresh`: ids of details that it must carry; None: without its models."""
    facts = _section(node.sections, NodeSection.FACTS, discovery_pb2.HostFacts)
    return cluster_pb2.Node(
        **{field.name: getattr(facts, field.name) for field in facts.DESCRIPTOR.fields},
        id=node.node_id,
        incarnation=node.incarnation,
        devices=_section(node.sections, NodeSection.DEVICES, discovery_pb2.DeviceList).devices,
        models=() if fresh is None else models.with_details(fresh) if fresh else models.brief.models,
        models_version=models.version,
        runners=_section(node.sections, NodeSection.RUNNERS, discovery_pb2.RunnerList).runners,
        suspect=node.suspect,
        report_age_ms=max(0, round((now_s - node.reported_at_s) * 1000)),
    )


def _section(sections: Mapping[NodeSection, object], section: NodeSection, kind: type[Content]) -> Content:
    content = sections[section]
    assert isinstance(content, kind)  # to_report put it there
    return content
