"""Certificates of nodes that count no more: those that were issued before a moment, by node.

The scheduler keeps the list in Redis and sends it to discovery, discovery to hosts. Both keep it on disk, so that a
restart without the others lets no node in again. A node with a newer certificate is welcome.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import orjson

from common.changes import Changes
from common.clock import MS_PER_S
from common.errors import Unauthenticated
from common.paths import replace_file
from common.startup_error import StartupError
from common.telemetry.logs import get_logger
from common.trust.certificates import Facts
from common.trust.roles import Role

log = get_logger()

# No certificate that is still in use is older.
KEPT_S = 366 * 24 * 3600.0
NODES_MAX = 10_000
# A moment that lies further ahead is not believed: no new certificate could undo it.
_AHEAD_S_MAX = 300.0


class Row(Protocol):
    """`puna.v1.Revocation`, which this package does not know."""

    node_id: str
    issued_before_unix_ms: int


class Revocations:
    """Lives on the event loop. `changes` counts changes of the list."""

    def __init__(self, path: Path | None = None, *, wall_unix_s: Callable[[], float] = time.time) -> None:
        """Read the list that was kept; without a path it is not kept.

        Raises:
            StartupError: the file is there and unreadable; an empty list would let removed nodes in.
        """
        self._path = path
        self._wall_unix_s = wall_unix_s
        self._before_ms: dict[str, int] = {}
        self.changes = Changes()
        try:
            kept = orjson.loads(path.read_bytes()) if path is not None else {}
            self._before_ms = {str(node_id): int(before_ms) for node_id, before_ms in kept.items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise StartupError(f"cannot read the list of removed nodes in {path}: {error}; remove it") from error

    @property
    def entries(self) -> Mapping[str, int]:
        """Unix milliseconds before which certificates of a node were issued in vain, by node id."""
        return self._before_ms

    def merge(self, rows: Iterable[Row]) -> None:
        """Add rows; the later moment of a node counts. Nothing is taken back but by time."""
        now_ms = self._wall_unix_s() * MS_PER_S
        latest = dict(self._before_ms)
        for row in rows:
            before_ms = min(row.issued_before_unix_ms, round(now_ms + _AHEAD_S_MAX * MS_PER_S))
            latest[row.node_id] = max(before_ms, latest.get(row.node_id, 0))
        kept = {node_id: before_ms for node_id, before_ms in latest.items() if before_ms > now_ms - KEPT_S * MS_PER_S}
        if kept == self._before_ms or len(kept) > NODES_MAX:
            return
        log.warning("nodes.removed", nodes=sorted(kept.keys() - self._before_ms.keys()), listed=len(kept))
        self._before_ms = kept
        self._keep()
        self.changes.notify()

    def refuses(self, facts: Facts) -> bool:
        """Return True if this is the certificate of a node that was removed after it was issued."""
        if facts.name.role is not Role.NODE:
            return False
        return facts.issued_unix_s * MS_PER_S < self._before_ms.get(facts.name.id, 0)

    def check(self, facts: Facts) -> None:
        """Let the holder of a certificate pass.

        Raises:
            Unauthenticated: its node was removed.
        """
        if self.refuses(facts):
            moment = datetime.fromtimestamp(self._before_ms[facts.name.id] / MS_PER_S, UTC)
            raise Unauthenticated(
                f"{facts.name} was removed from the cluster at {moment:%Y-%m-%d %H:%M:%SZ}; issue a new certificate"
            )

    def _keep(self) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, orjson.dumps(self._before_ms, option=orjson.OPT_SORT_KEYS))
        except OSError as error:
            log.error("nodes.removed_not_kept", path=str(self._path), text=str(error))
