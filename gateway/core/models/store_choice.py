"""Choice of a node's store: a new model goes to the one with most room, a change to all that have the model. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# More sources than this would not make a pull faster.
SOURCES_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreNode:
    """A node as its store matters. `models` are keys of names; `free_bytes` 0: nothing can be written there."""

    id: str
    address: str
    free_bytes: int = 0
    is_silent: bool = False
    models: frozenset[str] = frozenset()


def holders(nodes: Iterable[StoreNode], key: str) -> tuple[StoreNode, ...]:
    """List the nodes that have a name, silent ones last: a deletion must reach them too."""
    found = [node for node in nodes if key in node.models]
    return tuple(sorted(found, key=lambda node: (node.is_silent, node.id)))


def roomiest(nodes: Iterable[StoreNode]) -> StoreNode | None:
    """Return the node with most free bytes; requests at about the same time get the same node."""
    ready = [node for node in nodes if not node.is_silent]
    return min(ready, key=lambda node: (-node.free_bytes, node.id), default=None)


def node_to_pull(nodes: Sequence[StoreNode], key: str) -> StoreNode | None:
    """Return the node that has the name already, so that only changes are fetched; else the roomiest."""
    return roomiest(holders(nodes, key)) or roomiest(nodes)


def pull_sources(nodes: Iterable[StoreNode], chosen: StoreNode) -> tuple[str, ...]:
    """Return addresses of the stores that a pull may fetch from first."""
    others = sorted((node for node in nodes if node != chosen and not node.is_silent), key=lambda node: node.id)
    return tuple(node.address for node in others[:SOURCES_MAX])


def node_to_create(nodes: Iterable[StoreNode], blobs: Mapping[str, Mapping[str, int]]) -> StoreNode | None:
    """Return the node that has most bytes of the model's parts. `blobs`: by node id, sizes by digest."""
    ready = [node for node in nodes if not node.is_silent]
    return min(ready, key=lambda node: (-sum(blobs.get(node.id, {}).values()), -node.free_bytes, node.id), default=None)
