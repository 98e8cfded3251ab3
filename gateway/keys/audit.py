"""Audit log: who asked for what, what was decided, and how it ended. JSON lines with a chain of hashes.

Prompts, answers, tool arguments and header values are never in it. One thread writes; nothing on the event loop waits
for a disk, except administrative acts, which are refused if their line cannot be written.
"""

import asyncio
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Full, Queue

from common.audit.file import AuditFile, stamped
from common.clock import Clock
from common.errors import AuditUnavailable, StartupError
from common.telemetry.logs import get_logger
from gateway import metrics
from gateway.core.keys.keys import Scope

log = get_logger()

_ADMINISTRATIVE = frozenset({Scope.MODELS_WRITE, Scope.ADMIN_KEYS, Scope.ADMIN_CLUSTER})
WRITTEN_WITHIN_S = 2.0
_QUEUE_MAX = 10_000
_NAME_LENGTH_MAX = 256
_KEY_TEXT = re.compile(r"(puna_[0-9A-Za-z]{8})_[0-9A-Za-z_]+")
_Entry = dict[str, object]
_Written = Queue[tuple[_Entry, asyncio.Future[None] | None] | None]


def is_administrative(scope: Scope | None, act: str) -> bool:
    """Return True for what changes keys, models or the cluster."""
    return scope in _ADMINISTRATIVE and not act.startswith(("GET ", "HEAD "))


def without_secret(text: str) -> str:
    """Return what a caller named in a request, cut, and without the secret of a key that was meant by its id."""
    return _KEY_TEXT.sub(r"\1…", text[:_NAME_LENGTH_MAX])


class AuditLog:
    """Lines of one gateway in a file that other processes may write, too."""

    def __init__(self, path: str, clock: Clock) -> None:
        """Start the writer.

        Raises:
            StartupError: the file cannot be written.
        """
        self._file = AuditFile(Path(path).expanduser())
        self._clock = clock
        self._queue: _Written = Queue(_QUEUE_MAX)
        try:
            self._file.check()
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
        return stamped(entry, self._clock.wall_unix_s())

    def _write_all(self) -> None:
        is_failing = False
        while (item := self._queue.get()) is not None:
            entry, written = item
            fault: OSError | None = None
            try:
                self._file.append(entry, is_durable=written is not None)
            except OSError as error:
                fault = error
            if fault is not None and not is_failing:
                log.error("audit.failed", path=str(self._file.path), error=str(fault))
            elif fault is None and is_failing:
                log.info("audit.recovered", path=str(self._file.path))
            is_failing = fault is not None
            if written is not None:
                with suppress(RuntimeError):  # the event loop has ended
                    written.get_loop().call_soon_threadsafe(_settle, written, fault)
            elif fault is not None:
                metrics.AUDIT_LOST.inc()


def _settle(written: asyncio.Future[None], fault: OSError | None) -> None:
    if written.done():
        return
    if fault is None:
        written.set_result(None)
    else:
        written.set_exception(fault)
