"""The inventory as a watcher of changes has it: every message laid over what came before it."""

from dataclasses import dataclass

from protos import cluster_pb2, discovery_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenInventory:
    """All of it. A node that has not reported since an earlier inventory is the same object as in that one.

    Attributes:
        nodes: by id; read-only.
        epoch: grows with every stream; versions of models can be compared within one.
        models_changes: grows whenever the models of any node are others than before.
        removed_node_ids: nodes that left for good; their silence is no outage.
    """

    version: int
    uptime_ms: int
    metrics_address: str
    nodes: tuple[cluster_pb2.Node, ...]
    epoch: int
    models_changes: int
    removed_node_ids: frozenset[str] = frozenset()


class Laid:
    """Owned by the reader of the streams, one after the other."""

    def __init__(self) -> None:
        self._nodes: dict[str, cluster_pb2.Node] = {}
        self._epoch = 0
        self._models_changes = 0

    def take(self, message: discovery_pb2.Inventory) -> SeenInventory:
        """Lay a message over what is there; one that is not partial takes its place."""
        nodes = dict(self._nodes)
        if not message.is_partial:
            nodes = {}
            self._epoch += 1
            self._models_changes += 1
        for gone in message.gone_node_ids:
            if nodes.pop(gone, None) is not None:
                self._models_changes += 1
        for node in message.nodes:
            before = nodes.get(node.id)
            if before is None or before.models_version != node.models_version:
                self._models_changes += 1
            else:
                node.models.MergeFrom(before.models)  # left out because they are the same
            nodes[node.id] = node
        self._nodes = nodes
        return SeenInventory(
            version=message.version,
            uptime_ms=message.uptime_ms,
            metrics_address=message.metrics_address,
            nodes=tuple(nodes[node_id] for node_id in sorted(nodes)),
            epoch=self._epoch,
            models_changes=self._models_changes,
            removed_node_ids=frozenset(message.removed_node_ids),
        )
