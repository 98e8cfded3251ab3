"""Model files of an inventory as values. They are most of it and rarely change: they are kept."""

from collections.abc import Callable

from protos import cluster_pb2, discovery_pb2
from scheduler.core.view import ModelFile


class KnownFiles:
    """What every node had in the inventory before."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[list[cluster_pb2.Model], tuple[ModelFile, ...]]] = {}

    def of(self, node: cluster_pb2.Node, convert: Callable[[cluster_pb2.Model], ModelFile]) -> tuple[ModelFile, ...]:
        """The files of a node: the same object for as long as nothing about them changes."""
        models = list(node.models)
        before = self._known.get(node.id)
        if before is not None and before[0] == models:
            return before[1]
        files = tuple(convert(model) for model in models)
        self._known[node.id] = models, files
        return files

    def forget_others(self, inventory: discovery_pb2.Inventory) -> None:
        """Nodes that are gone come back as new ones."""
        for gone in self._known.keys() - {node.id for node in inventory.nodes}:
            del self._known[gone]
