"""Sources from which a node gets a model that it lacks. Values only; a host does the fetching."""

from collections.abc import Iterable
from dataclasses import dataclass

from common.spec.layout import Layout
from scheduler.core.values.view import ModelFile, NodeView


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Source from which a node gets a model that it lacks."""

    addresses: tuple[str, ...]  # of hosts that have it
    name: str  # there
    manifest_digest: str  # empty: they have it as plain files
    blob_digests: tuple[str, ...]
    projector_digest: str


def origins_for(nodes: Iterable[NodeView], node: NodeView, digest: str, projector_digest: str) -> list[Origin]:
    """Return sources of the files that a node needs; empty: the node itself has them, or no node has.

    All sources of one origin have the same files under the same manifest: if one fails, the next one continues.
    """
    if has_model(node, digest, projector_digest):
        return []
    having = [
        (other.address, file)
        for other in nodes
        if other.id != node.id
        and not other.suspect
        and (file := model_file(other, digest, projector_digest)) is not None
    ]
    found: dict[tuple[str, tuple[str, ...]], Origin] = {}
    for address, file in having:
        key = file.manifest_digest, file.blob_digests
        known = found.get(key)
        found[key] = Origin(
            addresses=(address,) if known is None else (*known.addresses, address),
            name=file.name if known is None else known.name,
            manifest_digest=file.manifest_digest,
            blob_digests=file.blob_digests,
            projector_digest=file.projector_digest,
        )
    return list(found.values())


def draft_origin(nodes: Iterable[NodeView], node: NodeView, layout: Layout) -> Origin | None:
    """Return a source of the layout's draft model; None: the node has it, there is none, or no node has it."""
    return next(iter(origins_for(nodes, node, layout.draft_digest, "")), None) if layout.draft_digest else None


def has_model(node: NodeView, digest: str, projector_digest: str) -> bool:
    """Return True if a node can load a model with this projector."""
    return model_file(node, digest, projector_digest) is not None


def model_file(node: NodeView, digest: str, projector_digest: str) -> ModelFile | None:
    """Return the model of a node that can load it with this projector; an empty digest: without one."""
    file = node.model(digest)
    if file is None or (projector_digest and file.projector_digest != projector_digest):
        return None
    return file
