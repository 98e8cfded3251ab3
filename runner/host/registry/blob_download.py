"""Fetches one blob: in parts at the same time, from the first source that has it, again where a connection breaks.

The hash follows the bytes as they become complete from the front. What is here survives the process.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from common.changes import Changes
from common.errors import (
    DigestMismatch,
    DiskFull,
    InvalidRequest,
    ModelNotFound,
    PermissionDenied,
    PunaError,
    RegistryFailed,
)
from common.telemetry.logs import get_logger
from runner.core.registry.parts import Part, PartSizes, done_bytes, frontier, plan_parts
from runner.core.store.digests import qualified
from runner.host import metrics
from runner.host.registry.partial_file import PartialFile
from runner.host.registry.sources import BlobChangedError, BlobSource, PeerSource, RangesUnknownError, describe

log = get_logger()

WRITE_BYTES = 1024 * 1024
HASH_STEP_BYTES = 8 * 1024 * 1024
RESTARTS_MAX = 3
# Errors that another try at the same source does not change.
FINAL = (InvalidRequest, ModelNotFound, PermissionDenied)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Numbers of a download; tests take smaller ones."""

    sizes: PartSizes = field(default_factory=PartSizes)
    stall_s: float = 30.0  # a connection that brings nothing for so long is given up
    tries: int = 3  # in a row without a byte, for a part at a source
    backoff_s: float = 1.0  # before the second try; doubles
    save_interval_s: float = 2.0  # what a crash may cost


class BlobDownload:
    """One blob on its way. `run` once."""

    def __init__(self, file: PartialFile, *, sources: Sequence[BlobSource], pace: Pace, changes: Changes) -> None:
        """Ask `sources` in this order; each has the blob, in this size, as far as it is known."""
        self.peers: set[str] = set()  # that bytes came from
        self._changes = changes
        self._file = file
        self._digest = file.digest
        self._size_bytes = file.size_bytes
        self._sources = sources
        self._pace = pace
        self._refused: dict[str, PunaError] = {}  # by name of the source
        self._parts: list[Part] = []

    @property
    def completed_bytes(self) -> int:
        """Return the number of bytes on disk."""
        return done_bytes(self._parts)

    async def run(self) -> None:
        """Have every byte in the file, and their digest checked. The file stays where it is.

        Raises:
            DigestMismatch: other bytes; the file is gone.
            DiskFull: no room.
            ModelNotFound, RegistryFailed, ModelUnavailable...: no source had it; what is here stays.
        """
        resumed = self._file.resume()
        if resumed is None:
            self._restart(plan_parts(self._size_bytes, self._pace.sizes))
        else:
            self._parts = list(resumed)
            log.info("blob.resumed", digest=self._digest[:12], bytes=self.completed_bytes, of=self._size_bytes)
        for _ in range(RESTARTS_MAX):
            try:
                await self._fetch_and_hash()
                break
            except RangesUnknownError as error:
                log.info("blob.restarted", digest=self._digest[:12], reason="no ranges", source=str(error))
                metrics.FETCH_RESTARTS.labels(reason="no_ranges").inc()
                self._restart((Part(start=0, stop=self._size_bytes),))
            except BlobChangedError as error:
                log.warning("blob.restarted", digest=self._digest[:12], reason="changed", text=str(error))
                metrics.FETCH_RESTARTS.labels(reason="changed").inc()
                self._restart(plan_parts(self._size_bytes, self._pace.sizes))
        else:
            self._file.delete()
            raise RegistryFailed(f"{qualified(self._digest)} could not be fetched: its source changes or breaks off")
        found = self._file.hex_digest()
        if found != self._digest:
            self._file.delete()
            raise DigestMismatch(f"digest mismatch, expected {qualified(self._digest)!r}, got {qualified(found)!r}")

    def _restart(self, parts: Sequence[Part]) -> None:
        self._file.begin()
        self._parts = list(parts)
        self._changes.notify()

    async def _fetch_and_hash(self) -> None:
        pending = iter([index for index, part in enumerate(self._parts) if not part.is_done])
        self._file.rehash()
        saving = asyncio.create_task(self._save_now_and_then())
        working = [asyncio.create_task(self._work_through(pending)) for _ in range(self._pace.sizes.parallel)]
        tasks = [*working, asyncio.create_task(self._hash())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, saving):
                task.cancel()
            await asyncio.gather(*tasks, saving, return_exceptions=True)
            with contextlib.suppress(OSError, DiskFull):  # what is fetched is worth keeping, an error is worth more
                await self._file.save(self._parts)

    async def _work_through(self, pending: Iterator[int]) -> None:
        for index in pending:  # shared: each worker takes the next one
            await self._fetch_part(index)

    async def _fetch_part(self, index: int) -> None:
        for source in self._sources:
            if source.name not in self._refused and await self._fetch_from(source, index):
                return
        errors = list(self._refused.values())
        if len(errors) == 1 and isinstance(errors[0], (*FINAL, RegistryFailed)):
            raise errors[0]
        # Others would be taken for those of this node: that it cannot be reached, or is busy.
        raise RegistryFailed(describe(self._digest, self._refused))

    async def _fetch_from(self, source: BlobSource, index: int) -> bool:
        """Return True if the part is complete; else the source is not asked again for this blob."""
        failures = 0
        while True:
            before = self._parts[index].done
            error: PunaError = RegistryFailed(f"{source.name} ends the connection before the blob's end")
            try:
                await self._read(source, index)
            except DiskFull:
                raise
            except PunaError as raised:
                error = raised
            if self._parts[index].is_done:
                return True
            failures = 1 if self._parts[index].done > before else failures + 1
            if source.name in self._refused:
                return False
            if isinstance(error, FINAL) or failures >= self._pace.tries:
                log.warning("blob.source_refused", source=source.name, digest=self._digest[:12], text=error.message)
                metrics.FETCH_RESTARTS.labels(reason="source_refused").inc()
                self._refused[source.name] = error
                return False
            metrics.FETCH_RESTARTS.labels(reason="part_again").inc()
            log.info("blob.part_again", source=source.name, digest=self._digest[:12], part=index, text=error.message)
            await asyncio.sleep(self._pace.backoff_s * 2 ** (failures - 1))

    async def _read(self, source: BlobSource, index: int) -> None:
        """Take what one connection brings."""
        part = self._parts[index]
        stream = source.read(self._digest, start=part.next, stop=part.stop, size=self._size_bytes)
        buffer, received = bytearray(), metrics.FETCHED_BYTES.labels(source=source.kind)
        try:
            while True:
                async with asyncio.timeout(self._pace.stall_s):
                    data = await anext(stream, None)
                if data is None:
                    break
                buffer += data
                if part.next + len(buffer) > part.stop:
                    raise BlobChangedError(f"{source.name} sends more than was asked for")
                received.inc(len(data))
                if isinstance(source, PeerSource):
                    self.peers.add(source.name)
                if len(buffer) >= WRITE_BYTES:
                    part = await self._write(index, buffer)
        except TimeoutError:
            raise RegistryFailed(f"{source.name} sent nothing for {self._pace.stall_s:g} s") from None
        finally:
            await stream.aclose()
            if buffer:
                await self._write(index, buffer)

    async def _write(self, index: int, buffer: bytearray) -> Part:
        """Return the part with what was in the buffer, which is empty then."""
        part = self._parts[index]
        data = bytes(buffer[: part.stop - part.next])
        buffer.clear()
        await self._file.write(data, part.next)
        part = self._parts[index] = part.grown(len(data))
        self._changes.notify()
        return part

    async def _hash(self) -> None:
        """Follow the bytes as they become complete from the front."""
        hashed = 0
        while hashed < self._size_bytes:
            seen = self._changes.version
            ready = min(frontier(self._parts), hashed + HASH_STEP_BYTES)
            if ready == hashed:
                await self._changes.beyond(seen)
                continue
            await self._file.hash_range(hashed, ready)
            hashed = ready

    async def _save_now_and_then(self) -> None:
        seen = self._changes.version
        while True:
            seen = await self._changes.beyond(seen)
            await self._file.save(list(self._parts))
            await asyncio.sleep(self._pace.save_interval_s)
