"""Messages to one watcher: the whole inventory first, then only changes if it asked for them.

In a cluster of a hundred idle hosts nearly everything stays as it is, and most of it is models. A node that has not
reported since the message before is left out, and so are the models of one whose models are the same.
"""

from collections.abc import Mapping

from common.model_details import SentDetails
from discovery.converters import Models, models_of, to_node
from discovery.core.membership import Member, Membership
from protos import discovery_pb2


class Sending:
    """One stream."""

    def __init__(self, *, changes_only: bool, started_at_s: float) -> None:
        """`started_at_s`: when this discovery process began."""
        self._changes_only = changes_only
        self._started_at_s = started_at_s
        self._details = SentDetails()
        self._nodes: dict[str, Member] = {}  # as they were sent last
        self._models: dict[str, Models] = {}

    def next(self, membership: Membership, now_s: float) -> discovery_pb2.Inventory:
        """Return the next message, with ages computed now."""
        is_partial = self._changes_only and bool(self._nodes)
        models = {node_id: models_of(node) for node_id, node in membership.nodes.items()}
        fresh: set[str] = set()
        if not is_partial or self._has_other_models(models):
            lists = (models[node_id] for node_id in sorted(models))
            fresh = self._details.must_send(model for one in lists for model in one.brief.models)
        sent = sorted(membership.nodes)
        if is_partial:
            sent = [node_id for node_id in sent if self._nodes.get(node_id) is not membership.nodes[node_id]]
        inventory = discovery_pb2.Inventory(
            version=membership.version,
            uptime_ms=round((now_s - self._started_at_s) * 1000),
            is_partial=is_partial,
            gone_node_ids=sorted(self._nodes.keys() - membership.nodes.keys()) if is_partial else (),
        )
        for node_id in sent:
            is_known = is_partial and self._models.get(node_id) is models[node_id]
            node = membership.nodes[node_id]
            inventory.nodes.append(to_node(node, models[node_id], None if is_known else fresh, now_s=now_s))
        self._nodes, self._models = dict(membership.nodes), models
        return inventory

    def _has_other_models(self, models: Mapping[str, Models]) -> bool:
        return models.keys() != self._models.keys() or any(
            self._models[node_id] is not one for node_id, one in models.items()
        )
