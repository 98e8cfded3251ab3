"""End of a runner process: drain, SIGTERM, grace, SIGKILL to its process group."""

import asyncio
import signal

from common.clock import Clock
from common.errors import ModelUnavailable
from common.telemetry.logs import get_logger
from runner.host.processes.process import ProcessHandle

log = get_logger()

STOP_GRACE_S = 5.0
REAP_TIMEOUT_S = 10.0
# Between the two SIGTERMs of a stop without drain: signals of one kind that are pending together count once.
HURRY_AFTER_S = 0.3


class DrainDeadline:
    """Until when running sequences may go on. A later request may only shorten it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s = float("inf")
        self._shortened = asyncio.Event()

    def allow(self, drain_s: float) -> None:
        """Let sequences run for at most `drain_s` from now."""
        self._until_s = min(self._until_s, self._clock.now_s() + drain_s)
        self._shortened.set()

    async def wait(self, process: ProcessHandle) -> None:
        """Wait until the process has gone or the time is up."""
        earliest_s = self._clock.now_s() + HURRY_AFTER_S
        while not process.exited.is_set():
            self._shortened.clear()
            remaining_s = max(self._until_s, earliest_s) - self._clock.now_s()
            if remaining_s <= 0:
                return
            waits = {asyncio.create_task(process.exited.wait()), asyncio.create_task(self._shortened.wait())}
            await asyncio.wait(waits, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()


async def stop_process(process: ProcessHandle, drain: DrainDeadline) -> None:
    """End a process. The first SIGTERM asks it to drain, the second to leave at once."""
    process.signal(signal.SIGTERM)
    await drain.wait(process)
    process.signal(signal.SIGTERM)
    if not await process.wait(STOP_GRACE_S):
        log.warning("runner.killed", pid=process.pid, grace_s=STOP_GRACE_S)
        await kill_process(process)


async def kill_process(process: ProcessHandle) -> None:
    """SIGKILL the group and wait until the kernel has let go of it, however long it takes: it holds what it holds."""
    process.kill_group()
    if await process.wait(REAP_TIMEOUT_S):
        return
    log.error("runner.unreaped", pid=process.pid, waited_s=REAP_TIMEOUT_S)
    process.unreaped.set()
    await process.exited.wait()
    log.info("runner.reaped_late", pid=process.pid)


async def wait_until_gone(ended: asyncio.Event, process: ProcessHandle | None) -> None:
    """Wait for an end that is on its way.

    Raises:
        ModelUnavailable: the process cannot be ended for now.
    """
    waits = [asyncio.create_task(ended.wait())]
    if process is not None:
        waits.append(asyncio.create_task(process.unreaped.wait()))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    if not ended.is_set():
        assert process is not None, "only a process goes on"
        raise ModelUnavailable(unreaped_text(process.pid), retry_after_s=REAP_TIMEOUT_S)


def unreaped_text(pid: int) -> str:
    """For people."""
    return f"process {pid} has not ended {REAP_TIMEOUT_S:g} s after SIGKILL"
