"""Orphaned processes: runners of a killed host, services of a killed supervisor."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable

from cli.cluster.home import Home
from cli.cluster.process_table import (
    ProcessEntry,
    descendants,
    is_running,
    processes_of_home,
    reap_orphans,
    send_signal,
)
from cli.cluster.state_file import ClusterRecord

# Between SIGTERM and SIGKILL; runners finish the step they are in, Redis writes its file.
TERMINATED_WITHIN_S = 5.0
_KILLED_WITHIN_S = 5.0
_LOOK_INTERVAL_S = 0.05


async def end_descendants(hurry: asyncio.Event) -> None:
    """End everything that descends from this process, which as a subreaper is all that it ever started."""

    def left() -> list[ProcessEntry]:
        reap_orphans(frozenset())
        return [entry for entry in descendants(os.getpid()) if not entry.zombie]

    await _end(left, hurry)


async def end_services_of(record: ClusterRecord) -> None:
    """End the services of a supervisor that died; SIGTERM was on its way to them when it did."""
    known = [
        ProcessEntry(pid=service.pid, parent_pid=0, start_ticks=service.start_ticks, zombie=False)
        for service in record.services.values()
        if service.pid is not None and service.start_ticks is not None
    ]
    await _end(lambda: _still_running(known), asyncio.Event())


async def end_processes_of(home: Home) -> int:
    """End every process that was ever started for this home, and return how many there were."""
    first = [entry for entry in processes_of_home(home.real) if not entry.zombie]
    await _end(lambda: [entry for entry in processes_of_home(home.real) if not entry.zombie], asyncio.Event())
    return len(first)


async def _end(left: Callable[[], list[ProcessEntry]], hurry: asyncio.Event) -> None:
    """SIGTERM once each, SIGKILL when the time is up, until none is left or killing does not help."""
    started_s = time.monotonic()
    asked: set[tuple[int, int]] = set()
    while entries := left():
        waited_s = time.monotonic() - started_s
        if waited_s > TERMINATED_WITHIN_S + _KILLED_WITHIN_S:
            return
        killing = hurry.is_set() or waited_s > TERMINATED_WITHIN_S
        for entry in entries:
            name = (entry.pid, entry.start_ticks)
            # A second SIGTERM would cut the orderly end short that the first one began.
            if killing or name not in asked:
                send_signal(entry, signal.SIGKILL if killing else signal.SIGTERM)
                asked.add(name)
        await asyncio.sleep(_LOOK_INTERVAL_S)


def _still_running(entries: Iterable[ProcessEntry]) -> list[ProcessEntry]:
    return [entry for entry in entries if is_running(entry.pid, entry.start_ticks)]
