"""Models on disk as stamps of files, cheap enough to read every two seconds.

The look has a deadline: what does not answer is passed by, and everything else is found.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import BadModelFile
from runner.core.model.file_names import NameClaim, distinct_names, is_own_name, model_name
from runner.core.store.manifest import parse_manifest
from runner.core.store.names import StoreName
from runner.host.files.blobs import BlobStore
from runner.host.files.file_threads import SILENCE_S, STUCK_MAX, FileStandsStill, FileStep, FileThreads
from runner.host.files.manifests import ManifestStore
from runner.host.files.plain_files import FileStamp, PlainModel, Walk, find_files, plain_models


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ModelSource:
    """A model by its files. It equals another one as long as nothing about it can have changed.

    Of a manifest: the manifest itself, then the blobs that are here. `stored` is its name; plain files have none.
    `is_plain` comes first in the order, so that manifests count before plain files. `wanted` is the name of a plain
    file if no other file had it. `trouble`: why it cannot be used, where that is seen without opening it.
    """

    is_plain: bool
    name: str
    files: tuple[FileStamp, ...]
    stored: StoreName | None = None
    wanted: str = ""
    trouble: str = ""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, in order."""
        return tuple(stamp.path for stamp in self.files)

    def replaces(self, other: "ModelSource") -> bool:
        """Return True if both are manifests of the same name."""
        if self.stored is not None and other.stored is not None:
            return self.stored.key == other.stored.key
        return False

    def is_changed(self, before: "ModelSource") -> bool:
        """Return True for a plain file that has been written to since."""
        stamps = {stamp.path: stamp for stamp in before.files}
        return (
            self.is_plain and not self.trouble and any(stamps.get(stamp.path, stamp) != stamp for stamp in self.files)
        )


class Finder:
    """One model directory. Owned by the event loop."""

    def __init__(
        self,
        directory: Path,
        manifests: ManifestStore,
        blobs: BlobStore,
        *,
        silence_s: float = SILENCE_S,
        on_silence: Callable[[FileStandsStill], None] = lambda _error: None,
    ) -> None:
        """`on_silence` hears of each path that is passed by, once for as long as it does not answer."""
        self._directory = directory
        self._manifests = manifests
        self._blobs = blobs
        self._threads = FileThreads(silence_s=silence_s)
        self._on_silence = on_silence
        self.room = (0, 0)  # free and total bytes, as of the last look

    def stuck_count(self) -> int:
        """Return how many paths do not answer."""
        return len(self._threads.stuck())

    async def find(self, known: Sequence[ModelSource]) -> list[ModelSource] | None:
        """Return every model that there may be; None while too much does not answer to tell.

        `known` are those of the look before: a file that does not answer now is as it was then, or has a trouble.
        """

        def work(step: FileStep) -> tuple[list[ModelSource], tuple[int, int]]:
            sources = self.look(known, stuck=stuck, at=step.at)
            step.at(self._directory)
            return sources, self._blobs.offered()

        for _ in range(STUCK_MAX):
            stuck = self._threads.stuck()
            if self._directory in stuck or len(stuck) >= STUCK_MAX:
                break
            try:
                sources, self.room = await self._threads.run(self._directory, work)
            except FileStandsStill as error:
                self._on_silence(error)
            else:
                return sources
        return None

    def look(
        self,
        known: Sequence[ModelSource] = (),
        *,
        stuck: frozenset[Path] = frozenset(),
        at: Callable[[Path], None] = lambda _path: None,
    ) -> list[ModelSource]:
        """Return every model that there may be, sorted, each with a name of its own; without a deadline, in any thread.

        `known` are those of the look before: what does not answer now (`stuck`) is as it was then.
        """
        walk = Walk(
            skipped=frozenset((self._manifests.directory, self._blobs.directory, self._directory / "quarantine")),
            stuck=stuck,
            known={stamp.path: stamp for source in known if source.is_plain for stamp in source.files},
            at=at,
        )
        stored = list(self._stored(walk, known))
        found = find_files(self._directory, walk)
        plain = list(plain_models(found))
        claims = [_claim(model, self._directory) for model in plain]
        names = distinct_names(claims, [source.name for source in stored])
        files = [
            ModelSource(
                is_plain=True,
                name=name,
                files=model.files,
                wanted=claim.name,
                trouble=model.trouble,
            )
            for model, claim, name in zip(plain, claims, names, strict=True)
        ]
        return sorted([*stored, *files])

    def _stored(self, walk: Walk, known: Sequence[ModelSource]) -> Iterator[ModelSource]:
        manifests, blobs = self._manifests, self._blobs
        before = [source for source in known if source.stored is not None]
        if walk.stuck & {manifests.directory, blobs.directory}:
            yield from before
            return
        walk.at(manifests.directory)
        for name in manifests.names():
            walk.at(manifests.directory)
            try:
                path = manifests.path(name)
                stamps = [FileStamp.of(path, follow=False)]
                content = manifests.read(name) or b""
                walk.at(blobs.directory)
                stamps += _blob_stamps(content, blobs)
            except OSError:
                continue  # deleted in this moment
            yield ModelSource(is_plain=False, name=name.short(), files=tuple(stamps), stored=name)


def _claim(model: PlainModel, directory: Path) -> NameClaim:
    path = model.files[0].path
    return NameClaim(
        name=model_name(path),
        path=path.relative_to(directory),
        is_own=is_own_name(path),
        is_broken=bool(model.trouble),
    )


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
