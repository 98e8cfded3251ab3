"""Makes a model: of another one, or of blobs that are here. Ollama's steps, in its words."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from common.errors import BadModelFile, InvalidRequest, ModelNotFound
from common.telemetry.logs import get_logger
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOptions:
    """Parameters of a new model. None: as in the model that it is made from."""

    name: StoreName
    from_model: StoreName | None = None
    files: Mapping[str, str] = field(default_factory=dict)  # name to digest
    adapters: Mapping[str, str] = field(default_factory=dict)
    adapter_scales: Mapping[str, float] = field(default_factory=dict)
    template: str | None = None
    system: str | None = None
    licenses: tuple[str, ...] = ()
    parameters_json: str = ""
    messages_json: str = ""
    renderer: str = ""
    parser: str = ""

    def check(self) -> None:
        """Everything that can be said without a look at the disk.

        Raises:
            InvalidRequest: what is wrong, and with which field.
        """
        if self.from_model is None and not self.files:
            raise InvalidRequest(NOTHING_NAMED, param="from")
        if self.from_model is not None and self.files:
            raise InvalidRequest("only one of 'from' and 'files' can be given", param="files")
        creation.check_file_names(self.files, param="files")
        creation.check_file_names(self.adapters, param="adapters")
        texts = {"template": self.template or "", "system": self.system or ""}
        creation.check_texts(texts | {"license": "".join(self.licenses)})
        creation.check_word("renderer", self.renderer)
        creation.check_word("parser", self.parser)
        creation.merged_parameters(self.parameters_json, "")
        creation.checked_messages(self.messages_json)
        if set(self.adapter_scales) - set(self.adapters):
            raise InvalidRequest("a scale is given for a file that is no adapter", param="adapter_scales")


@dataclass(slots=True, kw_only=True)
class _Base:
    """Parts of a model before the parameters are applied."""

    weights: list[Layer]  # models and projectors
    adapters: list[Layer] = field(default_factory=list)
    others: list[Layer] = field(default_factory=list)  # of types that mean nothing to us
    texts: Texts = field(default_factory=Texts)
    renderer: str = ""


class Creation:
    """One model that is being made. `digests` are the blobs that it needs, for as long as no manifest names them."""

    def __init__(self, store: Store, options: CreateOptions) -> None:
        self._store = store
        self._options = options

    async def run(self) -> AsyncIterator[str]:
        """Make it; yields what is being done, "success" last.

        Raises:
            ModelNotFound: the other model or a blob is not here.
            InvalidRequest: not a GGUF that can be used, or options that cannot be met.
            DiskFull, PermissionDenied: the store cannot be written.
        """
        options = self._options
        options.check()
        yield "gathering model components"
        named = [parse_wanted(digest) for digest in (*options.files.values(), *options.adapters.values())]
        with self._store.pinned(named):
            if options.from_model is None:
                yield "parsing GGUF"
            base = await (self._of_model(options.from_model) if options.from_model is not None else self._of_files())
            base.adapters += [await self._adapter(name) for name in options.adapters]
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
                        await self._store.write_manifest(options.name, write_manifest(config, [*layers, *texts]))
        log.info("model.created", model=options.name.short(), source="model" if options.from_model else "files")
        yield SUCCESS

    async def _of_model(self, name: StoreName) -> _Base:
        stored = await asyncio.to_thread(self._read, name)
        if stored is not None:
            return await asyncio.to_thread(self._base_of, parse_manifest(stored), name)
        plain = self._store.plain(name)
        if plain is None:
            raise not_found(name)
        if plain.model.error:
            raise InvalidRequest(plain.model.error, param="from")
        weights = await adopt_plain(self._store, plain)
        return _Base(weights=[replace(layer, parent=name.short()) for layer in weights])

    def _read(self, name: StoreName) -> bytes | None:
        with contextlib.suppress(OSError):
            return self._store.manifests.read(name)
        return None

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
            renderer=texts.renderer,
        )

    async def _of_files(self) -> _Base:
        weights = []
        for name, digest in self._options.files.items():
            layer, kind = await self._gguf(name, digest)
            if kind == ADAPTER_KIND:
                raise InvalidRequest(f"{name!r} is an adapter; give it as one", param="files")
            weights.append(layer)
        return _Base(weights=weights)

    async def _adapter(self, name: str) -> Layer:
        layer, kind = await self._gguf(name, self._options.adapters[name])
        if kind != ADAPTER_KIND:
            raise InvalidRequest(f"{name!r} is no adapter", param="adapters")
        return replace(layer, media_type=MediaType.ADAPTER, scale=self._options.adapter_scales.get(name, 1.0))

    async def _gguf(self, name: str, digest: str) -> tuple[Layer, str]:
        """Return a blob as a layer, and what kind of file it is."""
        digits = parse_wanted(digest)
        plain = self._store.models.plain_file(digits)
        if plain is not None:
            with writing(self._store.models.directory):
                await asyncio.to_thread(_adopt, self._store, plain, digits)
        size = self._store.blobs.size(digits)
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

    async def _write_texts(self, former: Texts) -> tuple[list[Layer], list[str]]:
        options = self._options
        wanted: list[tuple[MediaType, bytes]] = [
            (MediaType.TEMPLATE, (former.template if options.template is None else options.template).encode()),
            (MediaType.SYSTEM, (former.system if options.system is None else options.system).encode()),
            *((MediaType.LICENSE, text.encode()) for text in options.licenses or former.licenses),
            (MediaType.PARAMETERS, creation.merged_parameters(options.parameters_json, former.parameters_json)),
            (
                MediaType.MESSAGES,
                creation.checked_messages(options.messages_json) or former.messages_json.encode(),
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
            renderer=self._options.renderer or base.renderer,
            parser=self._options.parser or base.texts.parser,
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
        with writing(store.models.directory):
            await asyncio.to_thread(_adopt, store, path, digest)
        size = store.blobs.size(digest)
        if size is None:
            raise InvalidRequest(f"{path.name} changed while it was taken into the store", param="from")
        layers.append(Layer(media_type=MediaType.MODEL, digest=digest, size_bytes=size))
    projector = plain.model.projector_digest
    file = store.models.projector_path(projector) if projector else None
    if file is not None:
        with writing(store.models.directory):
            await asyncio.to_thread(_adopt, store, file, projector)
        layers.append(
            Layer(media_type=MediaType.PROJECTOR, digest=projector, size_bytes=store.blobs.size(projector) or 0)
        )
    return layers


def _adopt(store: Store, path: Path, digest: str) -> None:
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
