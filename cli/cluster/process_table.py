"""The kernel's process table, read from /proc: descendants, identities, and the end of orphaned processes.

Orphans are the runners of a killed host and the services of a killed supervisor.
"""

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cli.cluster.home import ClusterRecord, Home

# Between SIGTERM and SIGKILL; runners finish the step they are in, Redis writes its file.
TERMINATED_WITHIN_S = 5.0
_KILLED_WITHIN_S = 5.0
_LOOK_INTERVAL_S = 0.05
PR_SET_CHILD_SUBREAPER = 36
# Given to every process of a cluster and inherited by all that they start; not a PUNA_ name, which would be a setting.
OWNER_VARIABLE = "_PUNA_CLUSTER"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEntry:
    """One line of the table. Pid and start time together name a process for ever."""

    pid: int
    parent_pid: int
    start_ticks: int
    zombie: bool


def become_subreaper() -> None:
    """Make orphans among the descendants children of this process, so that none can slip away."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def read_process(pid: int) -> ProcessEntry | None:
    """Return the process with this pid, or None."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything, parentheses too; the fields after the last one are plain.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessEntry(pid=pid, parent_pid=int(fields[1]), start_ticks=int(fields[19]), zombie=fields[0] in ("Z", "X"))


def all_processes() -> Iterator[ProcessEntry]:
    """Every process that can be seen."""
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and (entry := read_process(int(path.name))) is not None:
            yield entry


def descendants(of_pid: int) -> list[ProcessEntry]:
    """Children, grandchildren and so on."""
    by_parent: dict[int, list[ProcessEntry]] = {}
    for entry in all_processes():
        by_parent.setdefault(entry.parent_pid, []).append(entry)
    found: list[ProcessEntry] = []
    waiting = [of_pid]
    while waiting:
        children = by_parent.get(waiting.pop(), [])
        found += children
        waiting += [child.pid for child in children]
    return found


def processes_of_home(home: Path) -> list[ProcessEntry]:
    """Return the processes that a supervisor of this home started, directly or not."""
    mark = f"{OWNER_VARIABLE}={home}".encode()
    found = []
    for entry in all_processes():
        with suppress(OSError):
            if mark in Path(f"/proc/{entry.pid}/environ").read_bytes().split(b"\0"):
                found.append(entry)
    return found


def send_signal(pid: int, start_ticks: int, number: signal.Signals) -> None:
    """Signal exactly this process, not another one that got its pid; nothing if it is gone."""
    with suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            # The descriptor holds the process fast; what is read now is what will be signalled.
            if is_running(pid, start_ticks):
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def is_running(pid: int, start_ticks: int) -> bool:
    """Return True while that very process runs."""
    now = read_process(pid)
    return now is not None and now.start_ticks == start_ticks and not now.zombie


def reap_orphans(own_children: frozenset[int]) -> None:
    """Collect dead children that this process inherited; those in `own_children` are collected by their owners."""
    me = os.getpid()
    for entry in all_processes():
        if entry.zombie and entry.parent_pid == me and entry.pid not in own_children:
            with suppress(ChildProcessError):
                os.waitpid(entry.pid, os.WNOHANG)


async def end_descendants(hurry: asyncio.Event) -> None:
    """End everything that descends from this process, which as a subreaper is all that it ever started."""

    def left() -> list[ProcessEntry]:
        reap_orphans(frozenset())
        return descendants(os.getpid())

    await _end(left, hurry)


async def end_services_of(record: ClusterRecord) -> None:
    """End the services of a supervisor that died; SIGTERM was on its way to them when it did."""
    known = {service.pid: service.start_ticks for service in record.services.values() if service.pid is not None}

    def left() -> list[ProcessEntry]:
        found = [read_process(pid) for pid in known]
        return [entry for entry in found if entry is not None and entry.start_ticks == known[entry.pid]]

    await _end(left, asyncio.Event())


async def end_processes_of(home: Home) -> int:
    """End every process that was ever started for this home, and return how many there were."""
    count = sum(not entry.zombie for entry in processes_of_home(home.real))
    await _end(lambda: processes_of_home(home.real), asyncio.Event())
    return count


async def _end(left: Callable[[], list[ProcessEntry]], hurry: asyncio.Event) -> None:
    """SIGTERM once each, SIGKILL when the time is up, until none is left or killing does not help."""
    started_s = time.monotonic()
    asked: set[tuple[int, int]] = set()
    while entries := [entry for entry in left() if not entry.zombie]:
        waited_s = time.monotonic() - started_s
        if waited_s > TERMINATED_WITHIN_S + _KILLED_WITHIN_S:
            return
        killing = hurry.is_set() or waited_s > TERMINATED_WITHIN_S
        for entry in entries:
            name = (entry.pid, entry.start_ticks)
            # A second SIGTERM would cut the orderly end short that the first one began.
            if killing or name not in asked:
                send_signal(*name, signal.SIGKILL if killing else signal.SIGTERM)
                asked.add(name)
        await asyncio.sleep(_LOOK_INTERVAL_S)
