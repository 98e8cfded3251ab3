"""What there is to look at on disk, cheap enough to ask every two seconds: stamps of files, and which make a model."""

from dataclasses import dataclass
from pathlib import Path

from common.errors import BadModelFile
from runner.core.store.manifest import parse_manifest
from runner.core.store.names import StoreName
from runner.host.models.plain_files import FileStamp, find_files, plain_models
from runner.host.store.blobs import BlobStore
from runner.host.store.manifests import ManifestStore


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Source:
    """A model by its files. It equals another one as long as nothing about it can have changed.

    Of a manifest: the manifest itself, then the blobs that are here. `stored` is its name; plain files have none.
    `is_plain` comes first in the order, so that manifests count before plain files.
    """

    is_plain: bool
    name: str
    files: tuple[FileStamp, ...]
    announced: int = 1
    stored: StoreName | None = None

    def replaces(self, other: "Source") -> bool:
        """Whether it is the same model by name, or what became of the same files."""
        if self.stored is not None and other.stored is not None:
            return self.stored.key == other.stored.key
        return False


def find_sources(directory: Path, manifests: ManifestStore, blobs: BlobStore) -> list[Source]:
    """Every model that there may be, sorted."""
    skipped = (manifests.directory, blobs.directory, directory / "quarantine")
    found = [
        Source(is_plain=True, name=model.name, files=model.files, announced=model.announced)
        for model in plain_models(find_files(directory, skipped=skipped))
    ]
    for name in manifests.names():
        try:
            path = manifests.path(name)
            stamps = [FileStamp.of(path, follow=False), *_blob_stamps(manifests.read(name) or b"", blobs)]
        except OSError:
            continue  # deleted in this moment
        found.append(Source(is_plain=False, name=name.short(), files=tuple(stamps), stored=name))
    return sorted(found)


def _blob_stamps(content: bytes, blobs: BlobStore) -> list[FileStamp]:
    try:
        layers = parse_manifest(content).blobs()
    except BadModelFile:
        return []
    stamps = []
    for layer in layers:
        try:
            stamps.append(FileStamp.of(blobs.path(layer.digest), follow=False))
        except OSError:
            continue
    return stamps
