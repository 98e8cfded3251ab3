"""Protos to the core's values and back."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from common.errors import InvalidRequest
from common.model_details import name_details, without_details
from common.model_names import is_model_name
from common.telemetry.device_metrics import DeviceRow
from common.telemetry.metrics import Sample
from discovery import metrics
from discovery.core.membership import Member, Membership, NodeSection, Report
from protos import cluster_pb2, discovery_pb2

Content = TypeVar("Content")

ID_LENGTH_MAX = 128
NODE_ITEMS_MAX = 10_000  # models or runners of one node; far above any real one, far below what could exhaust us


@dataclass(frozen=True, slots=True)
class Models:
    """A node's models, with and without what is sent only once. Worked out when they come, because they rarely do.

    `skipped` are names that are none: an older host sends them, and no service behind this one could take them.
    """

    full: discovery_pb2.ModelList
    brief: discovery_pb2.ModelList
    version: int = field(default_factory=itertools.count(1).__next__, compare=False)
    skipped: tuple[str, ...] = ()

    @classmethod
    def of(cls, full: discovery_pb2.ModelList) -> "Models":
        """Return the models of a section as it was received."""
        skipped = tuple(model.name for model in full.models if not is_model_name(model.name))
        if skipped:
            full = discovery_pb2.ModelList(models=[model for model in full.models if is_model_name(model.name)])
        for model in full.models:
            name_details(model)
        brief = discovery_pb2.ModelList(models=[without_details(model) for model in full.models])
        return cls(full, brief, skipped=skipped)

    def with_details(self, fresh: set[str]) -> list[cluster_pb2.Model]:
        """Return the models of a message; it has the details of the `fresh` ids, which are taken out."""
        models = []
        for full, brief in zip(self.full.models, self.brief.models, strict=True):
            name = full.description.details_id
            models.append(full if name in fresh else brief)
            fresh.discard(name)
        return models


def to_report(message: discovery_pb2.HostReport, *, stream: int) -> Report:
    """Check one message of a registration stream and take it apart.

    Raises:
        InvalidRequest: without ids, or absurdly long.
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
    return Report(
        node_id=message.node_id,
        incarnation=message.incarnation,
        started_at_unix_ms=message.started_at_unix_ms,
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
