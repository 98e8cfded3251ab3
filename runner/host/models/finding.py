"""Look for models with a deadline: what does not answer is passed by, and everything else is found."""

from collections.abc import Callable, Sequence
from pathlib import Path

from runner.host.files.blobs import BlobStore
from runner.host.files.file_threads import SILENCE_S, STUCK_MAX, FileStandsStill, FileStep, FileThreads
from runner.host.files.manifests import ManifestStore
from runner.host.files.plain_files import Walk
from runner.host.models.sources import ModelSource, find_sources


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

        def look(step: FileStep) -> tuple[list[ModelSource], tuple[int, int]]:
            walk = Walk(stuck=stuck, at=step.at)
            sources = find_sources(self._directory, self._manifests, self._blobs, walk=walk, known=known)
            step.at(self._directory)
            return sources, self._blobs.offered()

        for _ in range(STUCK_MAX):
            stuck = self._threads.stuck()
            if self._directory in stuck or len(stuck) >= STUCK_MAX:
                break
            try:
                sources, self.room = await self._threads.run(self._directory, look)
            except FileStandsStill as error:
                self._on_silence(error)
            else:
                return sources
        return None
