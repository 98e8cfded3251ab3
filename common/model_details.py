"""Long details of a model's file and manifest, sent once and not with every message.

Templates, metadata and licences of a model are tens of kilobytes, and the messages of a watch stream carry every model.
So each description names these fields by their content (`details_id`), and a message leaves them out wherever the
message before it on the same stream named the same id. The receiver keeps those of one message for the next.
"""

import hashlib
from collections.abc import Container, Iterable

from protos import cluster_pb2

_FIELDS = ("chat_template", "special_tokens", "metadata_json")
_MODEL_FIELDS = ("template", "licenses", "messages_json")
_ID_DIGITS = 32
# Of all models of a node, and of the cluster, in messages that list them: those may have 32 MiB (`MESSAGE_BYTES_MAX`).
NODE_BYTES_MAX = 16 * 1024 * 1024
CLUSTER_BYTES_MAX = 24 * 1024 * 1024


def name_details(model: cluster_pb2.Model) -> None:
    """Give a complete description the id of its details. A model without a description has none."""
    if model.HasField("description"):
        content = _details_of(model).SerializeToString(deterministic=True)
        model.description.details_id = hashlib.sha256(content).hexdigest()[:_ID_DIGITS]


def without_details(model: cluster_pb2.Model) -> cluster_pb2.Model:
    """Return a copy with names instead of details."""
    brief = cluster_pb2.Model()
    brief.CopyFrom(model)
    drop_details(brief)
    return brief


def drop_details(model: cluster_pb2.Model) -> None:
    """Leave out of an answer what no caller asks it for."""
    if model.HasField("description"):
        for field in _FIELDS:
            model.description.ClearField(field)  # type: ignore[arg-type]  # one of its fields
        for field in _MODEL_FIELDS:
            model.ClearField(field)  # type: ignore[arg-type]  # likewise


def fit_together(
    models: Iterable[cluster_pb2.Model], *, bytes_max: int, of: str, sent: set[str] | None = None
) -> list[cluster_pb2.Model]:
    """Return models that fit in one message: where they do not, the newest come without texts, and cannot be used.

    `of` names whose models they are. `sent`: ids of details that the message has already; those of the models join.
    """
    found = list(models)
    for index in sorted(range(len(found)), key=lambda index: (found[index].modified_at_unix_s, found[index].name)):
        model = found[index]
        size = added_bytes(model, sent or ())
        if size > bytes_max:
            found[index] = cluster_pb2.Model(
                name=model.name,
                digest=model.digest,
                size_bytes=model.size_bytes,
                modified_at_unix_s=model.modified_at_unix_s,
                manifest_digest=model.manifest_digest,
                error=f"the texts of all models of {of} are too long together; delete models to use this one",
            )
            continue
        bytes_max -= size
        if sent is not None:
            sent.add(model.description.details_id)
    return found


def added_bytes(model: cluster_pb2.Model, sent: Container[str]) -> int:
    """Return what a complete model adds to a message that has these details already."""
    return (without_details(model) if model.description.details_id in sent else model).ByteSize()


class SentDetails:
    """The sender's side of one stream."""

    def __init__(self) -> None:
        self._previous: frozenset[str] = frozenset()

    def must_send(self, models: Iterable[cluster_pb2.Model]) -> set[str]:
        """Ids whose details the next message, which has these models, must carry: each once, where it comes first."""
        named = frozenset(model.description.details_id for model in models) - {""}
        fresh, self._previous = named - self._previous, named
        return set(fresh)


class KeptDetails:
    """The receiver's side."""

    def __init__(self) -> None:
        self._kept: dict[str, cluster_pb2.Model] = {}

    def take(self, models: Iterable[cluster_pb2.Model]) -> None:
        """Keep the details of a message, and those of earlier ones that it names."""
        kept: dict[str, cluster_pb2.Model] = {}
        for model in models:
            name = model.description.details_id
            if name and name not in kept:
                # Copied: a part of a message would keep all of it in memory.
                kept[name] = self._kept.get(name) or _details_of(model)
        self._kept = kept

    def complete(self, model: cluster_pb2.Model) -> None:
        """Fill in what was left out."""
        known = self._kept.get(model.description.details_id)
        if known is None:
            return
        drop_details(model)
        model.MergeFrom(known)


def _details_of(model: cluster_pb2.Model) -> cluster_pb2.Model:
    description = cluster_pb2.ModelDescription(**{field: getattr(model.description, field) for field in _FIELDS})
    return cluster_pb2.Model(description=description, **{field: getattr(model, field) for field in _MODEL_FIELDS})
