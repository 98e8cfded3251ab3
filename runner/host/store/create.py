"""Makes a model: of another one, or of blobs that are here. Ollama's steps, in its words."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from common.errors import BadModelFile, InvalidRequest, ModelNotFound
from common.telemetry.logs import get_logger
from protos import store_pb2
from runner.core.store import creation
from runner.core.store.digests import digest_of, qualified
from runner.core.store.manifest import CONFIG_TYPE, Layer, Manifest, MediaType, parse_manifest, write_manifest
from runner.core.store.names import StoreName
from runner.host.files.blobs import PARTIAL_SUFFIX
from runner.host.files.inspection import ADAPTER_KIND, general_type, is_projector
from runner.host.models.model_files import NodeModel
from runner.host.models.rows import Texts, Weights, read_texts, resolve_weights
from runner.host.store.access import writing
from runner.host.store.store import Store, not_found, parse_wanted

log = get_logger()

SUCCESS = "success"
NOTHING_NAMED = "neither 'from' or 'files' was specified"


@dataclass(slots=True, kw_only=True)
class _Base:
    """Parts of a model before the parameters are applied."""

    weights: list[Layer]  # models and projectors
    adapters: list[Layer] = field(default_factory=list)
    others: list[Layer] = field(default_factory=list)  # of types that mean nothing to us
    texts: Texts = field(default_factory=Texts)


class Creation:
    """One model that is being made. `digests` are the blobs that it needs, for as long as no manifest names them."""

    def __init__(self, store: Store, request: store_pb2.CreateRequest) -> None:
        """Read the names.

        Raises:
            InvalidRequest: one is none.
        """
        self._store = store
        self._request = request
        self._name = StoreName.parse(request.name)
        self._from = StoreName.parse(request.from_model) if request.from_model else None

    async def run(self) -> AsyncIterator[str]:
        """Make it; yields what is being done, "success" last.

        Raises:
            ModelNotFound: the other model or a blob is not here.
            InvalidRequest: not a GGUF that can be used, or options that cannot be met.
            DiskFull, PermissionDenied: the store cannot be written.
        """
        request = self._request
        self._check()
        yield "gathering model components"
        named = [parse_wanted(digest) for digest in (*request.files.values(), *request.adapters.values())]
        with self._store.pinned(named):
            if self._from is None:
                yield "parsing GGUF"
            base = await (self._of_model(self._from) if self._from is not None else self._of_files())
            base.adapters += [await self._adapter(name) for name in request.adapters]
            with self._store.pinned(layer.digest for layer in (*base.weights, *base.adapters, *base.others)):
                weights = await self._checked(base)
                layers = [*base.weights, *base.adapters, *base.others]
                for layer in layers:
                    yield f"using existing layer {qualified(layer.digest)}"
                texts, statuses = await self._write_texts(base.texts)
                with self._store.pinned(layer.digest for layer in texts):
                    for status in statuses:
                        yield status
                    yield "writing manifest"
                    config = await self._write_config(weights, base, [*layers, *texts])
                    with self._store.pinned([config.digest]):
                        await self._store.write_manifest(self._name, write_manifest(config, [*layers, *texts]))
        log.info("model.created", model=self._name.short(), source="model" if self._from else "files")
        yield SUCCESS

    def _check(self) -> None:
        """Check everything that needs no look at the disk.

        Raises:
            InvalidRequest: what is wrong, and with which field.
        """
        request = self._request
        if self._from is None and not request.files:
            raise InvalidRequest(NOTHING_NAMED, param="from")
        if self._from is not None and request.files:
            raise InvalidRequest("only one of 'from' and 'files' can be given", param="files")
        creation.check_file_names(request.files, param="files")
        creation.check_file_names(request.adapters, param="adapters")
        creation.check_texts(
            {"template": request.template, "system": request.system, "license": "".join(request.licenses)}
        )
        creation.check_word("renderer", request.renderer)
        creation.check_word("parser", request.parser)
        creation.merged_parameters(request.parameters_json, "")
        creation.checked_messages(request.messages_json)
        if set(request.adapter_scales) - set(request.adapters):
            raise InvalidRequest("a scale is given for a file that is no adapter", param="adapter_scales")

    async def _of_model(self, name: StoreName) -> _Base:
        stored = await asyncio.to_thread(self._store.former, name)
        if stored is not None:
            return await asyncio.to_thread(self._base_of, parse_manifest(stored), name)
        plain = self._store.plain(name)
        if plain is None:
            raise not_found(name)
        if plain.model.error:
            raise InvalidRequest(plain.model.error, param="from")
        weights = await adopt_plain(self._store, plain)
        return _Base(weights=[replace(layer, parent=name.short()) for layer in weights])

    def _base_of(self, manifest: Manifest, name: StoreName) -> _Base:
        """Read the parts of another model."""
        kinds = (MediaType.MODEL, MediaType.PROJECTOR)
        known = {kind.value for kind in MediaType}
        blobs = self._store.blobs
        for layer in manifest.blobs():
            if not blobs.has(layer.digest):
                raise ModelNotFound(
                    f"model '{name.short()}' is not complete: blob {qualified(layer.digest)} is missing"
                )
        texts = read_texts(manifest, blobs)
        return _Base(
            weights=[
                replace(layer, parent=name.short() if layer.media_type == MediaType.MODEL else "")
                for layer in manifest.layers
                if layer.media_type in kinds
            ],
            adapters=list(manifest.of(MediaType.ADAPTER)),
            others=[layer for layer in manifest.layers if layer.media_type not in known],
            texts=texts,
        )

    async def _of_files(self) -> _Base:
        weights = []
        for name, digest in self._request.files.items():
            layer, kind = await self._gguf(name, digest)
            if kind == ADAPTER_KIND:
                raise InvalidRequest(f"{name!r} is an adapter; give it as one", param="files")
            weights.append(layer)
        return _Base(weights=weights)

    async def _adapter(self, name: str) -> Layer:
        layer, kind = await self._gguf(name, self._request.adapters[name])
        if kind != ADAPTER_KIND:
            raise InvalidRequest(f"{name!r} is no adapter", param="adapters")
        return replace(layer, media_type=MediaType.ADAPTER, scale=self._request.adapter_scales.get(name, 1.0))

    async def _gguf(self, name: str, digest: str) -> tuple[Layer, str]:
        """Return a blob as a layer, and what kind of file it is."""
        digits = parse_wanted(digest)
        plain = self._store.models.plain_file(digits)
        size = self._store.blobs.size(digits) if plain is None else await _adopt(self._store, plain, digits)
        if size is None:
            raise ModelNotFound(f"{name!r}: blob {qualified(digits)} is not here", param="files")
        try:
            path = self._store.blobs.path(digits)
            description = await self._store.models.inspector.describe_part(path, digits)
        except BadModelFile as error:
            raise InvalidRequest(f"{name!r} is no GGUF that can be used: {error.message}", param="files") from error
        kind = MediaType.PROJECTOR if is_projector(description) else MediaType.MODEL
        return Layer(media_type=kind, digest=digits, size_bytes=size), general_type(description)

    async def _checked(self, base: _Base) -> Weights:
        """Check the whole as a runner would load it."""
        models = self._store.models
        manifest = Manifest(config=None, layers=(*base.weights, *base.adapters))
        try:
            return await resolve_weights(manifest, self._store.blobs, models.inspector, models.verifier)
        except BadModelFile as error:
            raise InvalidRequest(f"these files make no model: {error.message}", param="files") from error

    async def _write_texts(self, texts: Texts) -> tuple[list[Layer], list[str]]:
        request, former = self._request, texts.row
        wanted: list[tuple[MediaType, bytes]] = [
            (MediaType.TEMPLATE, (request.template if request.HasField("template") else former.template).encode()),
            (MediaType.SYSTEM, (request.system if request.HasField("system") else former.system).encode()),
            *((MediaType.LICENSE, text.encode()) for text in request.licenses or former.licenses),
            (MediaType.PARAMETERS, creation.merged_parameters(request.parameters_json, former.parameters_json)),
            (
                MediaType.MESSAGES,
                creation.checked_messages(request.messages_json) or former.messages_json.encode(),
            ),
        ]
        layers, statuses = [], []
        for kind, content in wanted:
            if content:
                layer, is_new = await self._write_small(kind, content)
                layers.append(layer)
                word = "creating new" if is_new else "using existing"
                statuses.append(f"{word} layer {qualified(layer.digest)}")
        return layers, statuses

    async def _write_config(self, weights: Weights, base: _Base, layers: list[Layer]) -> Layer:
        described = weights.description
        content = creation.config(
            architecture=described.architecture,
            parameter_count=described.parameter_count,
            quantization=described.quantization,
            renderer=self._request.renderer or base.texts.renderer,
            parser=self._request.parser or base.texts.row.parser,
            layers=[qualified(layer.digest) for layer in layers],
        )
        return (await self._write_small(CONFIG_TYPE, content))[0]

    async def _write_small(self, kind: str, content: bytes) -> tuple[Layer, bool]:
        digest = digest_of(content)
        layer = Layer(media_type=kind, digest=digest, size_bytes=len(content))
        if self._store.blobs.size(digest) == len(content):
            return layer, False

        async def pieces() -> AsyncIterator[bytes]:
            yield content

        await self._store.uploads.receive(digest, len(content), pieces())
        return layer, True


async def adopt_plain(store: Store, plain: NodeModel) -> list[Layer]:
    """Adopt the files of a plain model as blobs: second names of the same files, copies on another file system.

    Raises:
        InvalidRequest: it changed in this moment.
        DiskFull, PermissionDenied: the store cannot be written.
    """
    layers = []
    for path, digest in zip(plain.paths, plain.model.blob_digests, strict=False):
        size = await _adopt(store, path, digest)
        if size is None:
            raise InvalidRequest(f"{path.name} changed while it was taken into the store", param="from")
        layers.append(Layer(media_type=MediaType.MODEL, digest=digest, size_bytes=size))
    projector = plain.model.projector_digest
    file = store.models.projector_path(projector) if projector else None
    if file is not None:
        size = await _adopt(store, file, projector)
        layers.append(Layer(media_type=MediaType.PROJECTOR, digest=projector, size_bytes=size or 0))
    return layers


async def _adopt(store: Store, path: Path, digest: str) -> int | None:
    """Return the size of the blob that the file is from now on; None if it is not one."""
    with writing(store.models.directory):
        await asyncio.to_thread(_link, store, path, digest)
    return store.blobs.size(digest)


def _link(store: Store, path: Path, digest: str) -> None:
    if store.blobs.has(digest):
        return
    store.blobs.make_directory()
    target = store.blobs.path(digest)
    try:
        os.link(path.resolve(), target)
    except OSError:
        store.blobs.check_room(path.stat().st_size)
        partial = target.with_name(f"copy-{os.urandom(8).hex()}{PARTIAL_SUFFIX}")
        try:
            shutil.copyfile(path, partial)
            partial.replace(target)  # its digest is computed before it is first loaded
        finally:
            partial.unlink(missing_ok=True)
