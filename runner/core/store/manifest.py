"""Manifests: which blobs a name stands for. Pure: bytes in, values out; what a registry sends is hostile."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import orjson

from common.errors import BadModelFile
from runner.core.store.digests import parse_digest, qualified

MANIFEST_BYTES_MAX = 4 * 1024 * 1024
LAYERS_MAX = 1024
SIZE_BYTES_MAX = 2**50
PARENT_CHARACTERS_MAX = 1024
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
# How strongly an adapter is applied, in the annotations of its layer. Without it: as trained.
SCALE_ANNOTATION = "puna.adapter.scale"


class MediaType(StrEnum):
    """Layers that mean something to us; others are kept and ignored."""

    MODEL = "application/vnd.ollama.image.model"
    PROJECTOR = "application/vnd.ollama.image.projector"
    ADAPTER = "application/vnd.ollama.image.adapter"
    TEMPLATE = "application/vnd.ollama.image.template"
    SYSTEM = "application/vnd.ollama.image.system"
    PARAMETERS = "application/vnd.ollama.image.params"
    MESSAGES = "application/vnd.ollama.image.messages"
    LICENSE = "application/vnd.ollama.image.license"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One blob of a model. `digest` is 64 hex digits, `parent` the model it comes from, `scale` that of an adapter."""

    media_type: str
    digest: str
    size_bytes: int
    scale: float = 1.0
    parent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A config, which may be missing in stores of others, and the layers in their order."""

    config: Layer | None
    layers: tuple[Layer, ...]

    def of(self, media_type: str) -> tuple[Layer, ...]:
        """Return the layers of one type."""
        return tuple(layer for layer in self.layers if layer.media_type == media_type)

    def blobs(self) -> tuple[Layer, ...]:
        """Everything that the manifest names, each blob once, layers first."""
        found: dict[str, Layer] = {}
        for layer in (*self.layers, *((self.config,) if self.config is not None else ())):
            found.setdefault(layer.digest, layer)
        return tuple(found.values())

    def total_bytes(self) -> int:
        """Size of all of it."""
        return sum(layer.size_bytes for layer in self.blobs())


def parse_manifest(content: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        BadModelFile: no manifest of this kind; the text says what is wrong.
    """
    if len(content) > MANIFEST_BYTES_MAX:
        raise BadModelFile(f"the manifest has {len(content)} bytes, at most {MANIFEST_BYTES_MAX} are allowed")
    try:
        read = orjson.loads(content)
    except ValueError as error:
        raise BadModelFile(f"the manifest is no JSON: {error}") from error
    if not isinstance(read, dict):
        raise BadModelFile("the manifest is no JSON object")
    if read.get("schemaVersion") != 2:
        raise BadModelFile(f"the manifest has the schema version {str(read.get('schemaVersion'))[:20]}, not 2")
    media_type = read.get("mediaType")
    if media_type not in (None, "", DOCKER_MANIFEST, OCI_MANIFEST):
        raise BadModelFile(f"the manifest is a {str(media_type)[:100]!r}, not the manifest of a model")
    layers = read.get("layers")
    if not isinstance(layers, list) or len(layers) > LAYERS_MAX:
        raise BadModelFile(f"the manifest has no list of layers, or more than {LAYERS_MAX}")
    config = read.get("config")
    return Manifest(
        config=_layer(config) if isinstance(config, dict) and config.get("digest") else None,
        layers=tuple(_layer(layer) for layer in layers),
    )


def write_manifest(config: Layer, layers: Iterable[Layer]) -> bytes:
    """Return the bytes of a manifest that we make."""
    return orjson.dumps(
        {
            "schemaVersion": 2,
            "mediaType": DOCKER_MANIFEST,
            "config": _to_json(config),
            "layers": [_to_json(layer) for layer in layers],
        }
    )


def _to_json(layer: Layer) -> dict[str, object]:
    written: dict[str, object] = {
        "mediaType": layer.media_type,
        "digest": qualified(layer.digest),
        "size": layer.size_bytes,
    }
    if layer.parent:
        written["from"] = layer.parent
    if layer.scale != 1.0:
        written["annotations"] = {SCALE_ANNOTATION: repr(layer.scale)}
    return written


def _layer(read: object) -> Layer:
    if not isinstance(read, dict):
        raise BadModelFile("the manifest has a layer that is no object")
    media_type, digest, size = read.get("mediaType"), read.get("digest"), read.get("size")
    if not isinstance(media_type, str) or len(media_type) > 255:
        raise BadModelFile("the manifest has a layer without a media type")
    try:
        digits = parse_digest(digest) if isinstance(digest, str) else ""
    except ValueError as error:
        raise BadModelFile(f"the manifest names a layer by what is no digest: {error}") from error
    if not digits:
        raise BadModelFile("the manifest has a layer without a digest")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= SIZE_BYTES_MAX:
        raise BadModelFile(f"the manifest gives the layer {digits[:12]} the impossible size {str(size)[:40]}")
    parent = read.get("from")
    return Layer(
        media_type=media_type,
        digest=digits,
        size_bytes=size,
        scale=_scale(read.get("annotations")),
        parent=parent if isinstance(parent, str) and len(parent) <= PARENT_CHARACTERS_MAX else "",
    )


def _scale(annotations: object) -> float:
    text = annotations.get(SCALE_ANNOTATION) if isinstance(annotations, Mapping) else None
    if text is None:
        return 1.0
    try:
        scale = float(str(text))
    except ValueError:
        scale = math.nan
    if not math.isfinite(scale):
        raise BadModelFile(f"the manifest has an adapter with the scale {str(text)[:40]!r}")
    return scale


def is_safetensors(layers: Sequence[Layer]) -> bool:
    """Return True if a model's weights are of a kind that the engine does not load."""
    return any("safetensors" in layer.media_type or layer.media_type.endswith("image.tensor") for layer in layers)
