"""A manifest as the model that others see, and the files that a runner of it loads."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from common.chat_templates import GRANTED_BY_TEMPLATES, granted_capabilities, is_jinja
from common.errors import BadModelFile, InvalidRequest
from protos import cluster_pb2
from runner.core.model.description import Capability
from runner.core.model.model_files import AdapterFile, ModelFiles
from runner.core.model.split_files import in_order
from runner.core.store.digests import combined, digest_of, qualified
from runner.core.store.manifest import Layer, Manifest, MediaType, is_safetensors, parse_manifest
from runner.core.store.names import StoreName
from runner.host.files.blobs import BlobStore
from runner.host.files.inspection import ADAPTER_KIND, Inspector, general_type, is_projector, metadata_of, sees
from runner.host.files.verification import Verifier

TEXT_BYTES_MAX = 1024 * 1024  # of a template, a system text, all licences...


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Layers of a manifest that a runner loads, by digest."""

    model: tuple[Layer, ...]  # in order
    adapters: tuple[Layer, ...]
    projector: Layer | None  # of images
    description: cluster_pb2.ModelDescription

    def digest(self) -> str:
        """Names what a runner loads, the projector aside: it is a choice of the layout."""
        model = weights_digest([layer.digest for layer in self.model])
        if not self.adapters:
            return model
        return combined([model, *(f"adapter:{layer.digest}:{layer.scale!r}" for layer in self.adapters)])

    def layers(self) -> tuple[Layer, ...]:
        """All of them, the model first."""
        return *self.model, *self.adapters, *((self.projector,) if self.projector is not None else ())

    def files(self, blobs: BlobStore) -> ModelFiles:
        """Return the paths of the files. The projector is added by a layout that wants it."""
        first, *more = (blobs.path(layer.digest) for layer in self.model)
        adapters = tuple(AdapterFile(path=blobs.path(layer.digest), scale=layer.scale) for layer in self.adapters)
        return ModelFiles(model=first, more=tuple(more), adapters=adapters)


def weights_digest(parts: Sequence[str]) -> str:
    """Return the digest of a model in one file or several."""
    return parts[0] if len(parts) == 1 else combined(parts)


async def resolve_weights(manifest: Manifest, blobs: BlobStore, inspector: Inspector, verifier: Verifier) -> Weights:
    """Look at every file that a runner would load, and put them in order.

    Raises:
        BadModelFile: one is missing or of the wrong kind, or there is no model.
        ModelUnavailable: the look failed; try again.
    """
    if is_safetensors(manifest.layers):
        raise BadModelFile("safetensors weights cannot be loaded, only GGUF files")
    parts: list[tuple[Layer, cluster_pb2.ModelDescription]] = []
    projector: Layer | None = None
    images = False
    for layer in (*manifest.of(MediaType.MODEL), *manifest.of(MediaType.PROJECTOR)):
        description = await inspector.describe_part(_present(layer, blobs, verifier), layer.digest)
        if is_projector(description):
            if projector is None or not images:
                projector, images = layer, sees(description)
        elif layer.media_type == MediaType.PROJECTOR:
            raise BadModelFile(f"blob {qualified(layer.digest)} is no projector")
        else:
            parts.append((layer, description))
    if not parts:
        raise BadModelFile("the manifest names no model")
    named = [(qualified(layer.digest)[:19], metadata_of(description)) for layer, description in parts]
    model = tuple(parts[index][0] for index in in_order(named))
    adapters = manifest.of(MediaType.ADAPTER)
    for layer in adapters:
        description = await inspector.describe_part(_present(layer, blobs, verifier), layer.digest)
        if general_type(description) != ADAPTER_KIND:
            raise BadModelFile(f"blob {qualified(layer.digest)} is no adapter")
    digests = [layer.digest for layer in model]
    described = await inspector.describe([blobs.path(digest) for digest in digests], weights_digest(digests))
    return Weights(
        model=model,
        adapters=adapters,
        projector=projector if images else None,
        description=described,
    )


def _present(layer: Layer, blobs: BlobStore, verifier: Verifier) -> Path:
    size = blobs.size(layer.digest)
    if size is None:
        raise BadModelFile(verifier.why_missing(layer.digest))
    if size != layer.size_bytes:
        raise BadModelFile(f"blob {qualified(layer.digest)} has {size} bytes, its manifest says {layer.size_bytes}")
    return blobs.path(layer.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Content of a manifest besides its weights, each part checked against its digest."""

    row: cluster_pb2.Model = field(default_factory=cluster_pb2.Model)  # texts, parser and parent
    renderer: str = ""
    model_format: str = ""


def read_texts(manifest: Manifest, blobs: BlobStore) -> Texts:
    """Read the small blobs. One that cannot be read or used is as if it were not there.

    Raises:
        BadModelFile: one of them is not what its digest says, or those of one kind are too long together.
    """

    def texts(kind: MediaType) -> list[str]:
        found, size = [], 0
        for layer in manifest.of(kind):
            content = read_small(layer, blobs) or b""
            size += len(content)
            if size > TEXT_BYTES_MAX:
                raise BadModelFile(f"the layers {kind.value} have more than {TEXT_BYTES_MAX} bytes together")
            found.append(content.decode(errors="replace"))
        return list(filter(None, found))

    config = read_small(manifest.config, blobs) if manifest.config is not None else None
    says = _object(config)
    parents = [layer.parent for layer in manifest.of(MediaType.MODEL) if _is_name(layer.parent)]
    row = cluster_pb2.Model(
        system="\n".join(texts(MediaType.SYSTEM)),
        template=next(iter(texts(MediaType.TEMPLATE)), ""),
        parameters_json=_json(texts(MediaType.PARAMETERS), dict),
        messages_json=_json(texts(MediaType.MESSAGES), list),
        licenses=texts(MediaType.LICENSE),
        parser=_text(says, "parser"),
        parent_model=next(iter(parents), ""),
    )
    return Texts(row=row, renderer=_text(says, "renderer"), model_format=_text(says, "model_format"))


def read_small(layer: Layer, blobs: BlobStore) -> bytes | None:
    """Return a small blob whole; None if it is not here or too long.

    Raises:
        BadModelFile: it is not what its digest says.
    """
    size = blobs.size(layer.digest)
    if size is None or size > TEXT_BYTES_MAX:
        return None
    try:
        content = blobs.read(layer.digest)
    except OSError:
        return None
    if digest_of(content) != layer.digest:
        raise BadModelFile(f"digest mismatch, blob {qualified(layer.digest)} has another content")
    return content


def _is_name(text: str) -> bool:
    """Return True for a model name; other tools put the path of a file there, which is not shown."""
    try:
        StoreName.parse(text)
    except InvalidRequest:
        return False
    return True


def _object(content: bytes | None) -> dict[str, object]:
    try:
        value = orjson.loads(content or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _json(texts: Sequence[str], kind: type) -> str:
    """Return the text if it is JSON of this kind."""
    for text in texts:
        try:
            if isinstance(orjson.loads(text), kind):
                return text
        except ValueError:
            continue
    return ""


def _text(says: dict[str, object], key: str) -> str:
    value = says.get(key)
    return value if isinstance(value, str) else ""


async def look_at(
    row: cluster_pb2.Model, content: bytes, blobs: BlobStore, inspector: Inspector, verifier: Verifier
) -> Weights:
    """Fill the row in, and return the weights that it stands for.

    Raises:
        BadModelFile: the model cannot be used; the row has what is known all the same.
        ModelUnavailable: the look failed; try again.
    """
    manifest = parse_manifest(content)
    row.total_size_bytes = manifest.total_bytes()
    model = manifest.of(MediaType.MODEL)
    row.size_bytes = sum(layer.size_bytes for layer in model)
    if len(model) == 1 and not manifest.of(MediaType.ADAPTER):
        row.digest = model[0].digest  # known whatever becomes of the file, so that a load says what is wrong with it
    texts = await asyncio.to_thread(read_texts, manifest, blobs)
    row.MergeFrom(texts.row)
    if texts.model_format not in ("", "gguf"):
        raise BadModelFile(f"{texts.model_format[:40]} weights cannot be loaded, only GGUF files")
    weights = await resolve_weights(manifest, blobs, inspector, verifier)
    row.digest = weights.digest()
    row.size_bytes = sum(layer.size_bytes for layer in weights.model)
    row.blob_digests.extend(layer.digest for layer in weights.layers())
    row.description.CopyFrom(weights.description)
    _grant_of_template(row)
    if weights.projector is not None:
        row.projector_digest = weights.projector.digest
        row.projector_size_bytes = weights.projector.size_bytes
        if Capability.VISION.value not in row.description.capabilities:
            row.description.capabilities.append(Capability.VISION.value)
    return weights


def _grant_of_template(row: cluster_pb2.Model) -> None:
    """Let the manifest's template say what the model can do, where it is rendered instead of the file's own."""
    known = list(row.description.capabilities)
    if not is_jinja(row.template) or Capability.COMPLETION.value not in known:
        return
    own = [name for name in known if name not in GRANTED_BY_TEMPLATES]
    row.description.capabilities[:] = [*own, *granted_capabilities(row.template)]
