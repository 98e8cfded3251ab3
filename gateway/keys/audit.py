"""Audit log: who asked for what, what was decided, and how it ended. JSON lines with a chain of hashes.

Prompts, answers, tool arguments and header values are never in it. One thread writes; nothing on the event loop waits
for a disk, except administrative acts, which are refused if their line cannot be written.
"""

import asyncio
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from queue import Full, Queue

from common.audit_chain import last_hash, seal
from common.clock import Clock
from common.errors import AuditUnavailable, StartupError
from common.telemetry.logs import get_logger
from gateway import metrics
from gateway.core.keys.keys import Scope

log = get_logger()

_ADMINISTRATIVE = frozenset({Scope.MODELS_WRITE, Scope.ADMIN_KEYS, Scope.ADMIN_CLUSTER})
WRITTEN_WITHIN_S = 2.0
_QUEUE_MAX = 10_000
_TAIL_BYTES = 64 * 1024
_Entry = dict[str, object]
_Written = Queue[tuple[_Entry, asyncio.Future[None] | None] | None]


def is_administrative(scope: Scope | None, act: str) -> bool:
    """Return True for what changes keys, models or the cluster."""
    return scope in _ADMINISTRATIVE and not act.startswith(("GET ", "HEAD "))


class AuditLog:
    """One file of one gateway. A file that was moved away (log rotation) is opened anew, and the chain goes on."""

    def __init__(self, path: str, clock: Clock) -> None:
        """Open the file and take up its chain.

        Raises:
            StartupError: it cannot be opened.
        """
        self._path = Path(path)
        self._clock = clock
        self._queue: _Written = Queue(_QUEUE_MAX)
        self._file = -1
        self._hash = ""
        try:
            self._open()
            self._hash = self._take_up()
        except OSError as error:
            raise StartupError(f"PUNA_AUDIT_LOG: {path}: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._write_all, name="audit", daemon=True)
        self._thread.start()

    async def require(self, entry: Mapping[str, object]) -> None:
        """Write an entry, and return once it is on the disk.

        Raises:
            AuditUnavailable: it cannot be written; the act must not be carried out.
        """
        written = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait((self._stamped(entry), written))
            async with asyncio.timeout(WRITTEN_WITHIN_S):
                await written
        except (OSError, TimeoutError, Full) as error:
            metrics.AUDIT_LOST.inc()
            text = f"the audit log cannot be written ({str(error) or 'no answer of the disk'}): nothing was changed"
            raise AuditUnavailable(text, retry_after_s=5.0) from error

    def note(self, entry: Mapping[str, object]) -> None:
        """Write an entry soon. One that cannot be written is counted, and nothing else happens."""
        try:
            self._queue.put_nowait((self._stamped(entry), None))
        except Full:
            metrics.AUDIT_LOST.inc()

    async def close(self) -> None:
        """Write what waits, and close the file."""
        await asyncio.to_thread(self._queue.put, None)
        await asyncio.to_thread(self._thread.join, WRITTEN_WITHIN_S)

    def _stamped(self, entry: Mapping[str, object]) -> _Entry:
        time = datetime.fromtimestamp(self._clock.wall_unix_s(), UTC).isoformat(timespec="milliseconds")
        return {"time": time, **{name: value for name, value in entry.items() if value not in (None, "")}}

    def _write_all(self) -> None:
        is_failing = False
        while (item := self._queue.get()) is not None:
            entry, written = item
            fault: OSError | None = None
            try:
                self._write(entry, is_durable=written is not None)
            except OSError as error:
                fault = error
            if fault is not None and not is_failing:
                log.error("audit.failed", path=str(self._path), error=str(fault))
            elif fault is None and is_failing:
                log.info("audit.recovered", path=str(self._path))
            is_failing = fault is not None
            if written is not None:
                with suppress(RuntimeError):  # the event loop has ended
                    written.get_loop().call_soon_threadsafe(_settle, written, fault)
            elif fault is not None:
                metrics.AUDIT_LOST.inc()
        os.close(self._file)

    def _write(self, entry: _Entry, *, is_durable: bool) -> None:
        """Append a line, all of it or nothing."""
        if not self._is_in_place():
            self._open()
        line, digest = seal(entry, self._hash)
        size = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) != len(line):
                raise OSError("no room for the whole line")
            if is_durable:
                os.fsync(self._file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, size)
            raise
        self._hash = digest

    def _is_in_place(self) -> bool:
        try:
            found, ours = self._path.stat(), os.fstat(self._file)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)

    def _open(self) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if self._file >= 0:
            os.close(self._file)
        self._file = file

    def _take_up(self) -> str:
        """Return the hash of the last line; the rest of a line that a crash cut off is removed."""
        size = os.fstat(self._file).st_size
        start = max(0, size - _TAIL_BYTES)
        tail = os.pread(self._file, _TAIL_BYTES, start)
        whole = tail[: tail.rfind(b"\n") + 1]
        os.ftruncate(self._file, start + len(whole))
        lines = whole.splitlines()
        return last_hash(lines[-1]) if lines else ""


def _settle(written: asyncio.Future[None], fault: OSError | None) -> None:
    if written.done():
        return
    if fault is None:
        written.set_result(None)
    else:
        written.set_exception(fault)
