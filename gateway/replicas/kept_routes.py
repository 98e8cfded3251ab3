"""The last table of routes on disk, so that a gateway serves warm models when it starts while no scheduler answers.

They are hints: what answers at an address says which placement it is before it gets a request.
"""

import asyncio
import hashlib
import os
from pathlib import Path

from google.protobuf.message import DecodeError

from common.paths import open_regular, printable, replace_file, set_aside
from common.telemetry.logs import get_logger
from gateway.replicas.routes import RouteCache
from protos import scheduler_pb2

log = get_logger()

KEEP_EVERY_S = 1.0
CURRENT_WITHIN_S = 1.0
RETRY_S = 10.0
BYTES_MAX = 64 * 2**20
_DIGEST_BYTES = hashlib.sha256().digest_size


async def current_routes(routes: RouteCache) -> None:
    """Wait a moment for the scheduler's table where only one on disk is known: it may lack the last second."""
    if not routes.heard and routes.all():
        await routes.until(lambda: routes.heard, CURRENT_WITHIN_S)


async def keep_routes(routes: RouteCache, path: Path) -> None:
    """Take the table of an earlier gateway, and write each later one, at most one a second, until cancelled."""
    _restore(routes, path)
    changed, kept = asyncio.Event(), b""
    problem: str | None = None
    routes.subscribe(changed.set)
    while True:
        await changed.wait()
        changed.clear()
        try:
            kept, problem = await asyncio.to_thread(_write, path, routes.table, kept), None
        except OSError as error:
            if error.strerror != problem:
                log.warning("routes.not_kept", path=printable(path), text=error.strerror)
            problem = error.strerror
            changed.set()  # a full disk has space again, some day
        await asyncio.sleep(RETRY_S if problem else KEEP_EVERY_S)


def _write(path: Path, table: scheduler_pb2.RouteTable, kept: bytes) -> bytes:
    """Write a table unless it is the one that is kept; return its digest.

    Raises:
        OSError: it cannot be written.
    """
    content = table.SerializeToString(deterministic=True)
    digest = hashlib.sha256(content).digest()
    if digest != kept:
        replace_file(path, digest + content)
    return digest


def _restore(routes: RouteCache, path: Path) -> None:
    """Take the table of a file. One that is damaged is set aside; none, or one that cannot be read, is no fault."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            content = file.read(BYTES_MAX + 1)
        if hashlib.sha256(content[_DIGEST_BYTES:]).digest() != content[:_DIGEST_BYTES]:
            log.error("routes.corrupt", path=printable(path), set_aside=set_aside(path).name)
            return
        routes.take(scheduler_pb2.RouteTable.FromString(content[_DIGEST_BYTES:]))
        log.info("routes.restored", models=len(routes.all()))
    except FileNotFoundError:
        log.debug("routes.none_kept", path=printable(path))
    except (OSError, DecodeError) as error:
        log.warning("routes.not_restored", path=printable(path), text=str(error))
