"""The model files of this node: found by scanning a directory, named by file name, identified by their digest."""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
from google.protobuf import json_format

from common.changes import Changes
from common.clock import NS_PER_S
from common.errors import BadModelFile, ModelNotFound, ModelUnavailable
from common.logs import get_logger
from protos import cluster_pb2
from runner.core import model_files as core_files
from runner.core.description import PROJECTOR_ARCHITECTURE, Capability
from runner.host import metrics
from runner.host.children import run_child
from runner.host.home import write_durably

log = get_logger()

SCAN_INTERVAL_S = 2.0
INSPECT_TIMEOUT_S = 20.0
SCANS_PER_RETRY = 15  # a look that failed (no memory, machine too busy) is repeated every half minute
# Part of the cache's file names: raise it when inspection finds more than before.
INSPECTION_VERSION = 1
FILES_MAX = 10_000
SUFFIX = ".gguf"
NAME_LENGTH_MAX = 256
ADAPTER_KIND = "adapter"  # of general.type
VISION = Capability.VISION.value


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileStamp:
    """Changes whenever a file's content may have."""

    path: Path
    device: int
    inode: int
    size_bytes: int
    modified_ns: int

    def cache_key(self) -> str:
        """Names this content on this machine, whatever the file is called."""
        return f"{self.device}:{self.inode}:{self.size_bytes}:{self.modified_ns}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One file and what is known of it. `is_verdict` is False where the look at it failed and is worth another."""

    path: Path
    model: cluster_pb2.Model
    is_verdict: bool = True
    is_projector: bool = False  # belongs to the model beside it, and is never listed by itself
    sees: bool = False  # a projector of images, not only of sounds


def model_name(path: Path) -> str:
    """File name without suffix, with the tag ":latest" unless it has one."""
    stem = path.name.removesuffix(SUFFIX)
    return stem if ":" in stem else f"{stem}:latest"


class ModelFiles:
    """Owned by its `watch` task; `models()` and `find` read."""

    def __init__(self, directory: Path, cache_directory: Path) -> None:
        self.changes = Changes()
        self.scanned = asyncio.Event()  # the first look is over
        self._directory = directory
        self._digests_path = cache_directory / "digests.json"
        self._descriptions = cache_directory / "descriptions"
        self._descriptions.mkdir(parents=True, exist_ok=True)
        self._digests: dict[str, str] = _read_digests(self._digests_path)
        self._scans = 0
        self._stamps: list[FileStamp] | None = None
        self._files: dict[FileStamp, ModelFile] = {}

    def models(self) -> list[cluster_pb2.Model]:
        """Every known file, by name. Two files of one name: the first by path counts."""
        by_name: dict[str, cluster_pb2.Model] = {}
        projectors = {file.path: file.model for file in self._files.values() if file.sees}
        for stamp in sorted(self._files):
            file = self._files[stamp]
            if not file.is_projector and file.model.name not in by_name:
                by_name[file.model.name] = _with_projector(file, projectors)
        return [by_name[name] for name in sorted(by_name)]

    def find(self, digest: str) -> ModelFile:
        """A usable file with this digest.

        Raises:
            ModelNotFound: this node has none.
            BadModelFile: it has one that cannot be used; the text says why.
        """
        files = self._files.values()
        matching = [file for file in files if file.model.digest == digest and not file.is_projector]
        if not matching:
            raise ModelNotFound(f"this node has no model file with digest {digest[:12] or '(none)'}")
        for file in matching:
            if not file.model.error:
                return file
        raise BadModelFile(matching[0].model.error)

    def files_of(self, digest: str, layout: cluster_pb2.Layout) -> core_files.ModelFiles:
        """The files that a runner of this model with this layout loads.

        Raises:
            ModelNotFound: this node lacks one of them.
            BadModelFile: the model itself cannot be used. Projector and adapters are judged by the runner.
        """
        projector = layout.projector_digest
        return core_files.ModelFiles(
            model=self.find(digest).path,
            projector=self._part(projector, "projector") if projector else None,
            adapters=tuple(
                core_files.AdapterFile(path=self._part(adapter.digest, "adapter"), scale=adapter.scale)
                for adapter in layout.adapters
            ),
        )

    def _part(self, digest: str, kind: str) -> Path:
        """A file that is no model by itself."""
        for file in self._files.values():
            if digest and file.model.digest == digest:
                return file.path
        raise ModelNotFound(f"this node has no {kind} with digest {digest[:12] or '(none)'}")

    async def watch(self) -> None:
        """Scan now and whenever the directory differs; runs for ever."""
        while True:
            await self.scan()
            self.scanned.set()
            await asyncio.sleep(SCAN_INTERVAL_S)
            if self._scans % SCANS_PER_RETRY == 0:
                self._forget_failures()

    async def scan(self) -> None:
        """One look at the directory; reads only files that are new or changed."""
        self._scans += 1
        stamps = await asyncio.to_thread(find_files, self._directory)
        if stamps == self._stamps:
            return
        gone = self._files.keys() - set(stamps)
        for stamp in gone:
            del self._files[stamp]
        if gone:
            self._tell()
        for stamp in stamps:
            if stamp not in self._files:
                self._files[stamp] = await self._examine(stamp)
                self._tell()
        self._stamps = stamps

    async def _examine(self, stamp: FileStamp) -> ModelFile:
        model = cluster_pb2.Model(
            name=model_name(stamp.path),
            size_bytes=stamp.size_bytes,
            modified_at_unix_s=stamp.modified_ns // NS_PER_S,
        )
        try:
            model.digest = await self._digest(stamp)
            description = await self._describe(stamp.path, model.digest)
            if description.architecture == PROJECTOR_ARCHITECTURE:
                log.info("projector.found", digest=model.digest[:12], path=str(stamp.path))
                return ModelFile(path=stamp.path, model=model, is_projector=True, sees=_sees(description))
            model.description.CopyFrom(description)
            log.info("model.found", model=model.name, digest=model.digest[:12], path=str(stamp.path))
        except (BadModelFile, ModelUnavailable) as error:
            model.error = error.message
            log.warning("model.unusable", model=model.name, path=str(stamp.path), text=error.message)
            return ModelFile(path=stamp.path, model=model, is_verdict=isinstance(error, BadModelFile))
        return ModelFile(path=stamp.path, model=model)

    def _forget_failures(self) -> None:
        failed = [stamp for stamp, file in self._files.items() if not file.is_verdict]
        for stamp in failed:
            del self._files[stamp]
        if failed:
            self._stamps = None

    async def _digest(self, stamp: FileStamp) -> str:
        known = self._digests.get(stamp.cache_key())
        if known is not None:
            return known
        try:
            digest = await asyncio.to_thread(_sha256, stamp.path)
        except OSError as error:
            raise BadModelFile(f"{stamp.path}: {error.strerror}") from error
        self._digests[stamp.cache_key()] = digest
        await asyncio.to_thread(write_durably, self._digests_path, orjson.dumps(self._digests))
        return digest

    async def _describe(self, path: Path, digest: str) -> cluster_pb2.ModelDescription:
        """What a throw-away child says about the file; a description is kept by digest.

        Raises:
            BadModelFile: the child refuses the file.
            ModelUnavailable: the child crashed or ran over its time.
        """
        cached = self._descriptions / f"{digest}-v{INSPECTION_VERSION}.json"
        description = cluster_pb2.ModelDescription()
        if cached.exists():
            return json_format.Parse(cached.read_bytes(), description)
        result = await run_child("inspect", [str(path)], timeout_s=INSPECT_TIMEOUT_S)
        if result.exit_code == 0:
            json_format.Parse(result.output, description)
            if _kind(description) == ADAPTER_KIND:
                raise BadModelFile(f"{path}: an adapter changes another model and answers nothing by itself")
            await asyncio.to_thread(write_durably, cached, result.output)
            return description
        refusal = _refusal(result.output)
        if refusal:
            raise BadModelFile(refusal)
        raise ModelUnavailable(f"{path}: the inspection failed: {result.failure()}")

    def _tell(self) -> None:
        models = [file for file in self._files.values() if not file.is_projector]
        unusable = sum(bool(file.model.error) for file in models)
        metrics.MODELS.labels(state="usable").set(len(models) - unusable)
        metrics.MODELS.labels(state="unusable").set(unusable)
        self.changes.notify()


def find_files(directory: Path) -> list[FileStamp]:
    """Every *.gguf below the directory, sorted; hidden directories and what cannot be read are left out."""
    stamps = []
    for parent, directories, names in os.walk(directory):
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        for name in names:
            if not name.endswith(SUFFIX) or name.startswith(".") or len(name) > NAME_LENGTH_MAX:
                continue
            path = Path(parent) / name
            try:
                status = path.stat()
            except OSError:
                continue
            stamps.append(
                FileStamp(
                    path=path,
                    device=status.st_dev,
                    inode=status.st_ino,
                    size_bytes=status.st_size,
                    modified_ns=status.st_mtime_ns,
                )
            )
    return sorted(stamps)[:FILES_MAX]


def _with_projector(file: ModelFile, projectors: Mapping[Path, cluster_pb2.Model]) -> cluster_pb2.Model:
    """The model as others see it: one that has a projector beside it sees."""
    names = core_files.projector_names(file.path.name)
    found = next((projectors[path] for name in names if (path := file.path.with_name(name)) in projectors), None)
    if found is None or file.model.error:
        return file.model
    model = cluster_pb2.Model()
    model.CopyFrom(file.model)
    model.projector_digest = found.digest
    model.projector_size_bytes = found.size_bytes
    if VISION not in model.description.capabilities:
        model.description.capabilities.append(VISION)
    return model


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refusal(output: bytes) -> str:
    try:
        answer = orjson.loads(output)
    except ValueError:
        return ""
    return str(answer.get("message", "")) if isinstance(answer, Mapping) else ""


def _kind(description: cluster_pb2.ModelDescription) -> str:
    """What general.type says; files of the usual kind often leave it out."""
    return str(orjson.loads(description.metadata_json or "{}").get("general.type", ""))


def _sees(description: cluster_pb2.ModelDescription) -> bool:
    return orjson.loads(description.metadata_json or "{}").get("clip.has_vision_encoder") is True


def _read_digests(path: Path) -> dict[str, str]:
    try:
        kept = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}  # a cache: what is lost is computed again
    return {str(key): str(value) for key, value in kept.items()} if isinstance(kept, dict) else {}
