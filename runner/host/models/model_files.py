"""The models of this node: manifests of its store and plain GGUF files, looked at whenever something changes."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.changes import Changes
from common.clock import NS_PER_S
from common.errors import BadModelFile, ModelNotFound, ModelUnavailable
from common.model_details import NODE_BYTES_MAX, fit_together
from common.paths import printable
from common.telemetry.logs import get_logger
from protos import cluster_pb2
from runner.core.model import model_files as core_files
from runner.core.model.description import Capability
from runner.core.model.file_names import file_stem
from runner.core.store.digests import digest_of, parse_digest
from runner.core.store.names import StoreName
from runner.host import metrics
from runner.host.files.blobs import BlobStore
from runner.host.files.file_digests import FileDigests
from runner.host.files.file_threads import SILENCE_S, FileStandsStill
from runner.host.files.inspection import Inspector, is_projector, sees
from runner.host.files.manifests import ManifestStore
from runner.host.files.plain_files import FILES_MAX
from runner.host.files.verification import Verifier
from runner.host.models.rows import Weights, look_at, weights_digest
from runner.host.models.sources import Finder, ModelSource

log = get_logger()

OnProgress = Callable[[int, int], None]  # bytes that are done, bytes of all

SCAN_INTERVAL_S = 2.0
RESCAN_WAIT_S = 10.0
SCANS_PER_RETRY = 15  # a look that failed (no memory, machine too busy) is repeated every half minute
VISION = Capability.VISION.value
GROWING = "still being written; it is read when it stays as it is"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeModel:
    """A model and its files. `is_verdict` is False where the look at it failed and is worth another."""

    model: cluster_pb2.Model
    paths: tuple[Path, ...] = ()  # of the weights, in order
    is_stored: bool = False  # it has a manifest, and is no plain file
    weights: Weights | None = None  # of a manifest that can be used
    is_verdict: bool = True
    is_projector: bool = False  # belongs to the model beside it, and is never listed by itself
    sees: bool = False  # a projector of images, not only of sounds


class NodeModels:
    """Owned by its `watch` task; `models()` and `find` read."""

    def __init__(self, directory: Path, cache_directory: Path, *, silence_s: float = SILENCE_S) -> None:
        """`silence_s`: a file operation that takes longer is left alone."""
        self.changes = Changes()
        self.scanned = asyncio.Event()  # the first look is over
        self.directory = directory
        self.digests = FileDigests(cache_directory / "digests.json", silence_s=silence_s)
        self.inspector = Inspector(cache_directory / "descriptions")
        self.blobs = BlobStore(directory / "blobs")
        self.manifests = ManifestStore(directory / "manifests")
        self.verifier = Verifier(self.blobs, self.digests, directory / "quarantine", self._forget_scan)
        self.blobs.on_commit = self.verifier.written
        self._scans = 0
        self._scanning = asyncio.Lock()
        self._finder = Finder(directory, self.manifests, self.blobs, silence_s=silence_s, on_silence=_name_silent)
        self._sources: list[ModelSource] | None = None
        self._files: dict[ModelSource, NodeModel] = {}
        self._again: set[ModelSource] = set()  # listed, and worth another look
        self._looked = Changes()  # for the task that verifies
        self._rescan: asyncio.Task[None] | None = None
        self.free_bytes, self.total_bytes = 0, 0  # as of the last scan

    def models(self) -> list[cluster_pb2.Model]:
        """Every known model, by name. A file that is the stored model of its name itself is not listed beside it."""
        by_name: dict[str, cluster_pb2.Model] = {}
        projectors = self._projectors()
        for source in sorted(self._files):
            file, same = self._files[source], by_name.get(source.wanted.lower())
            if same is not None and file.model.digest and same.digest == file.model.digest:
                continue
            if not file.is_projector:
                by_name.setdefault(file.model.name.lower(), _with_projector(file, projectors))
        rows = sorted(by_name.values(), key=lambda model: model.name)
        return fit_together(rows, bytes_max=NODE_BYTES_MAX, of="this node")

    def named(self, name: StoreName) -> NodeModel | None:
        """Return the model of a name, a manifest before a plain file; with the projector beside it."""
        short = name.short().lower()
        projectors = self._projectors()
        for source in sorted(self._files):
            file = self._files[source]
            if not file.is_projector and file.model.name.lower() == short:
                return replace(file, model=_with_projector(file, projectors))
        return None

    def _projectors(self) -> Mapping[Path, cluster_pb2.Model]:
        """Those that see, by directory and stem of their file."""
        return {
            file.paths[0].with_name(file_stem(file.paths[0])): file.model for file in self._files.values() if file.sees
        }

    def find(self, digest: str) -> NodeModel:
        """Return a usable model with this digest.

        Raises:
            ModelNotFound: this node has none.
            BadModelFile: it has one that cannot be used; the text says why.
        """
        matching = [file for file in self._files.values() if file.model.digest == digest and not file.is_projector]
        if not matching:
            raise ModelNotFound(f"this node has no model file with digest {digest[:12] or '(none)'}")
        for file in matching:
            if not file.model.error:
                return file
        raise BadModelFile(matching[0].model.error)

    def files_of(self, digest: str, layout: cluster_pb2.Layout) -> core_files.ModelFiles:
        """Return the files that a runner of this model with this layout loads.

        Raises:
            ModelNotFound: this node lacks one of them.
            BadModelFile: the model itself cannot be used. Projector and adapters are judged by the runner.
        """
        file = self.find(digest)
        projector = layout.projector_digest
        own = file.weights.files(self.blobs).adapters if file.weights is not None else ()
        return core_files.ModelFiles(
            model=file.paths[0],
            more=file.paths[1:],
            projector=self._part(projector, "projector") if projector else None,
            adapters=own
            + tuple(
                core_files.AdapterFile(path=self._part(adapter.digest, "adapter"), scale=adapter.scale)
                for adapter in layout.adapters
            ),
            draft=self.draft_of(layout),
        )

    def draft_of(self, layout: cluster_pb2.Layout) -> tuple[Path, ...]:
        """Return the files of a layout's draft model; none: it has none.

        Raises:
            ModelNotFound, BadModelFile: it is not here, or cannot be used.
        """
        return tuple(self.find(layout.draft_digest).paths) if layout.draft_digest else ()

    def unverified_blobs(self, digest: str, layout: cluster_pb2.Layout) -> list[str]:
        """Return the digests of the blobs that a runner would load and that are not verified yet.

        Raises:
            ModelNotFound, BadModelFile: as `files_of`.
        """
        files = self.files_of(digest, layout)
        blobs = [parse_digest(path.name) for path in files.all if path.parent == self.blobs.directory]
        return [blob for blob in blobs if not self.verifier.is_verified(blob)]

    async def verify(self, digest: str, layout: cluster_pb2.Layout, on_progress: OnProgress) -> None:
        """Verify every blob that a runner would load; `on_progress` gets the bytes that are done, and those of all.

        Raises:
            ModelNotFound, BadModelFile: one of them is not here, or not what its name says; then it was moved away.
        """
        blobs = self.unverified_blobs(digest, layout)
        sizes = {blob: self.blobs.size(blob) or 0 for blob in blobs}
        before, total = 0, sum(sizes.values())
        for blob, size in sizes.items():
            await self.verifier.verify(blob, shifted(on_progress, before, total))
            before += size
            on_progress(before, total)

    def plain_file(self, digest: str) -> Path | None:
        """Return a plain file with this content, for other nodes that ask for a blob."""
        for file in self._files.values():
            if not file.is_stored and file.paths and digest in (file.model.digest, *file.model.blob_digests):
                index = list(file.model.blob_digests).index(digest) if digest in file.model.blob_digests else 0
                return file.paths[index]
        return None

    def projector_path(self, digest: str) -> Path | None:
        """Return a projector that lies beside a plain file."""
        files = (file for file in self._files.values() if file.is_projector and file.model.digest == digest)
        return next((file.paths[0] for file in files), None)

    def _part(self, digest: str, kind: str) -> Path:
        """Return a file that is no model by itself."""
        for file in self._files.values():
            if not digest:
                break
            if not file.is_stored and file.model.digest == digest and file.paths:
                return file.paths[0]
            if file.is_stored and digest in file.model.blob_digests:
                return self.blobs.path(digest)
        raise ModelNotFound(f"this node has no {kind} with digest {digest[:12] or '(none)'}")

    async def watch(self) -> None:
        """Scan now and whenever the directory differs, and verify what was found; runs for ever."""
        verifying = asyncio.create_task(self._verify_all())
        try:
            while True:
                await self.scan()
                self.scanned.set()
                await asyncio.sleep(SCAN_INTERVAL_S)
                if self._scans % SCANS_PER_RETRY == 0:
                    self._forget_failures()
        finally:
            verifying.cancel()
            self.verifier.stop()
            await asyncio.gather(verifying, return_exceptions=True)

    async def rescan(self) -> None:
        """See now what was just written or deleted; not for long, where a large file is being read just then."""
        self._rescan = asyncio.create_task(self.scan())
        await asyncio.wait({self._rescan}, timeout=RESCAN_WAIT_S)

    async def scan(self) -> None:
        """One look at the directory; reads only files that are new or changed."""
        async with self._scanning:
            self._scans += 1
            sources = await self._finder.find(list(self._files))
            self.free_bytes, self.total_bytes = self._finder.room
            metrics.STUCK_FILES.set(self._finder.stuck_count())
            if sources is None or (sources == self._sources and not self._again):
                return
            if sum(len(source.files) for source in sources if source.is_plain) >= FILES_MAX:
                log.warning("models.too_many", listed=FILES_MAX, text="further files are left out")
            gone = self._files.keys() - set(sources)
            fresh = [source for source in sources if source not in self._files or source in self._again]
            growing = {source for source in fresh if any(source.is_changed(old) for old in gone)}
            self._again = set(growing)
            # A name whose manifest changed is there all the time: its old row goes when the new one is known.
            replaced = {source for source in gone if any(other.replaces(source) for other in fresh)}
            for source in gone - replaced:
                del self._files[source]
            if gone - replaced:
                self._tell()
            for source in fresh:
                file = _growing(source) if source in growing else await self._examine(source)
                for old in [old for old in replaced if source.replaces(old)]:
                    self._files.pop(old, None)
                self._files[source] = file
                self._tell()
            self._sources = sources

    async def _examine(self, source: ModelSource) -> NodeModel:
        try:
            return await (self._examine_plain(source) if source.stored is None else self._examine_stored(source))
        except Exception as error:  # one odd file must not hide the others
            log.exception("model.look_failed", model=source.name, path=printable(source.paths[0]))
            row = _bare_row(source)
            row.error = f"{printable(source.paths[0])}: the look at it failed: {printable(error)}"
            return NodeModel(paths=source.paths, model=row, is_stored=source.stored is not None, is_verdict=False)

    async def _examine_stored(self, source: ModelSource) -> NodeModel:
        assert source.stored is not None
        name, is_verdict = source.stored, True
        row = cluster_pb2.Model(name=name.short())
        try:
            content = await asyncio.to_thread(self.manifests.read, name) or b""
            row.manifest_digest = digest_of(content)
            row.modified_at_unix_s = source.files[0].modified_ns // NS_PER_S
            weights = await look_at(row, content, self.blobs, self.inspector, self.verifier)
            log.info("model.found", model=row.name, digest=row.digest[:12], manifest=row.manifest_digest[:12])
            return NodeModel(model=row, is_stored=True, weights=weights, paths=weights.files(self.blobs).weights)
        except OSError as error:
            row.error = f"the manifest cannot be read: {error.strerror}"
        except (BadModelFile, ModelUnavailable) as error:
            row.error = error.message
            is_verdict = isinstance(error, BadModelFile)
        log.warning("model.unusable", model=row.name, text=row.error)
        return NodeModel(model=row, is_stored=True, is_verdict=is_verdict)

    async def _examine_plain(self, source: ModelSource) -> NodeModel:
        stamps, paths, model = source.files, source.paths, _bare_row(source)
        try:
            if source.trouble:
                raise BadModelFile(source.trouble)
            ahead = None
            if any(self.digests.known(stamp) is None for stamp in stamps):
                for stamp in stamps:
                    await self.digests.check_answers(stamp)
                ahead = await self.inspector.look_ahead(paths, "+".join(stamp.cache_key() for stamp in stamps))
            digests = [await self.digests.of(stamp) for stamp in stamps]
            model.digest = weights_digest(digests)
            model.blob_digests.extend(digests)
            description = await self.inspector.describe(paths, model.digest, ahead=ahead)
            if is_projector(description):
                log.info("projector.found", digest=model.digest[:12], path=str(paths[0]))
                return NodeModel(paths=paths, model=model, is_projector=True, sees=sees(description))
            model.description.CopyFrom(description)
            log.info("model.found", model=model.name, digest=model.digest[:12], path=str(paths[0]))
        except (BadModelFile, ModelUnavailable) as error:
            model.error = error.message
            log.warning("model.unusable", model=model.name, path=printable(paths[0]), text=error.message)
            return NodeModel(paths=paths, model=model, is_verdict=isinstance(error, BadModelFile))
        return NodeModel(paths=paths, model=model)

    async def _verify_all(self) -> None:
        """Verify every blob before a load waits for it."""
        while True:
            seen = self._looked.version
            for digest in await asyncio.to_thread(self._unverified, list(self._files.values())):
                with contextlib.suppress(BadModelFile, ModelUnavailable):
                    await self.verifier.verify(digest)
            await self._looked.beyond(seen)

    def _unverified(self, files: Sequence[NodeModel]) -> list[str]:
        stored = [file.weights for file in files if file.weights is not None]
        digests = dict.fromkeys(layer.digest for weights in stored for layer in weights.layers())
        return [digest for digest in digests if not self.verifier.is_verified(digest)]

    def _forget_failures(self) -> None:
        self._again |= {source for source, file in self._files.items() if not file.is_verdict}

    def _forget_scan(self) -> None:
        """Forget the last scan: a blob is gone, and the next look must not find the sources unchanged."""
        self._sources = None

    def _tell(self) -> None:
        models = [file for file in self._files.values() if not file.is_projector]
        unusable = sum(bool(file.model.error) for file in models)
        metrics.MODELS.labels(state="usable").set(len(models) - unusable)
        metrics.MODELS.labels(state="unusable").set(unusable)
        self._looked.notify()
        self.changes.notify()


def _name_silent(error: FileStandsStill) -> None:
    log.warning("models.no_answer", path=printable(error.path), text=error.message)


def _bare_row(source: ModelSource) -> cluster_pb2.Model:
    """Return what is known of a plain file before it is opened."""
    return cluster_pb2.Model(
        name=source.name,
        size_bytes=sum(stamp.size_bytes for stamp in source.files),
        modified_at_unix_s=max(stamp.modified_ns for stamp in source.files) // NS_PER_S,
    )


def _growing(source: ModelSource) -> NodeModel:
    """Return the row of a file that changes from one look to the next."""
    row = _bare_row(source)
    row.error = source.trouble or f"{printable(source.paths[0])}: {GROWING}"
    return NodeModel(paths=source.paths, model=row, is_verdict=False)


def _with_projector(file: NodeModel, projectors: Mapping[Path, cluster_pb2.Model]) -> cluster_pb2.Model:
    """Return the model as others see it: one that has a projector beside it sees."""
    if file.is_stored or file.model.error:
        return file.model
    path = file.paths[0]
    names = core_files.projector_stems(file_stem(path))
    found = next((projectors[other] for name in names if (other := path.with_name(name)) in projectors), None)
    if found is None:
        return file.model
    model = cluster_pb2.Model()
    model.CopyFrom(file.model)
    model.projector_digest = found.digest
    model.projector_size_bytes = found.size_bytes
    model.blob_digests.append(found.digest)
    if VISION not in model.description.capabilities:
        model.description.capabilities.append(VISION)
    return model


def shifted(on_progress: OnProgress, before: int, total: int) -> Callable[[int], None]:
    """Shift the progress of one blob to that of all."""
    return lambda done: on_progress(before + done, total)
