"""Nodes of an inventory as values. Most of it is as it was: the view of a node without a new report is kept."""

from common.model_names import is_model_name
from common.seen_inventory import SeenInventory
from protos import cluster_pb2
from scheduler.converters import to_file, to_node
from scheduler.core.sizes.speeds import LikeSpeeds, like_speeds, likened
from scheduler.core.values.view import ModelFile, NodeView


class KnownNodes:
    """Previous content of every node in the inventory."""

    def __init__(self) -> None:
        self._views: dict[str, tuple[cluster_pb2.Node, NodeView]] = {}
        self._like = LikeSpeeds()
        self._likened: dict[str, tuple[NodeView, NodeView]] = {}  # as reported, and with the speeds of like devices
        self._files: dict[str, tuple[tuple[int, int], list[cluster_pb2.Model], tuple[ModelFile, ...]]] = {}

    def views(self, inventory: SeenInventory) -> tuple[tuple[NodeView, ...], frozenset[str]]:
        """Return every node, and the ids of those that have not reported since.

        Views of these are the same objects, unless like devices have reported other speeds.
        """
        views: list[NodeView] = []
        silent: set[str] = set()
        for node in inventory.nodes:
            before = self._views.get(node.id)
            if before is not None and before[0] is node:
                silent.add(node.id)
                views.append(before[1])
            else:
                views.append(to_node(node, self._files_of(node, inventory.epoch)))
        self._views = {node.id: (node, view) for node, view in zip(inventory.nodes, views, strict=True)}
        for gone in self._files.keys() - self._views.keys():
            del self._files[gone]  # it comes back as a new one
        return self._with_like_speeds(views), frozenset(silent)

    def _with_like_speeds(self, views: list[NodeView]) -> tuple[NodeView, ...]:
        like = like_speeds(views)
        before, self._likened = (self._likened if like == self._like else {}), {}
        self._like = like
        for view in views:
            known = before.get(view.id)
            self._likened[view.id] = known if known is not None and known[0] is view else (view, likened(view, like))
        return tuple(after for _, after in self._likened.values())

    def _files_of(self, node: cluster_pb2.Node, epoch: int) -> tuple[ModelFile, ...]:
        """Return the files of a node: the same object for as long as nothing about them changes."""
        version = epoch, node.models_version
        before = self._files.get(node.id)
        if before is not None and node.models_version and before[0] == version:
            return before[2]
        models = [model for model in node.models if is_model_name(model.name)]  # the others are named by the routes
        files = before[2] if before is not None and before[1] == models else tuple(map(to_file, models))
        self._files[node.id] = version, models, files
        return files
