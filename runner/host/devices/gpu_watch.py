"""Follows what the drivers say about cards, through a child that may hang so that the host does not."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import orjson

from common.telemetry.logs import get_logger
from runner.core.devices.gpu_memory import GpuMemory
from runner.core.host.environment import child_environment
from runner.gpu_memory import LIST_ANEW, LOOK_CLOSELY
from runner.host.processes import children

log = get_logger()

FIRST_LINE_TIMEOUT_S = 10.0
# A line comes every second, and the drivers have two to answer; a broken card hangs their library.
LINE_TIMEOUT_S = 3.0
RESTART_S_MIN = 1.0
RESTART_S_MAX = 60.0


class Asking:
    """Has the drivers list their cards anew, now: by the child that follows them, or by the next one."""

    def __init__(self) -> None:
        self._child: asyncio.StreamWriter | None = None
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Never waits: a child that hangs is not written to for long."""
        self._asked.set()
        self._write(LIST_ANEW)

    def hurry(self) -> None:
        """Have the cards read more often for a while: processes on them come or go."""
        self._write(LOOK_CLOSELY)

    def _write(self, request: bytes) -> None:
        child = self._child
        # One that has ended is closed before it is forgotten, and uvloop raises at a write to it.
        if child is not None and not child.is_closing() and not child.transport.get_write_buffer_size():
            child.write(request)

    def forget(self) -> None:
        """Drop earlier requests: a child that is yet to start knows every card."""
        self._asked.clear()

    async def wait(self) -> None:
        """Wait for a request, or return if there was one since `forget`."""
        await self._asked.wait()

    @contextlib.contextmanager
    def of(self, child: asyncio.StreamWriter) -> Iterator[None]:
        """While it lives, this child is asked."""
        self._child = child
        try:
            yield
        finally:
            self._child = None
            child.close()


async def watch_gpus(
    take: Callable[[list[GpuMemory]], None], *, on_silence: Callable[[], None], asking: Asking | None = None
) -> None:
    """Pass on the figures of every second. Returns when there is no card with a driver to ask; else runs for ever.

    `on_silence` hears that the drivers hang: not of a child that falls silent, which a busy machine explains, but of
    one that never said a word.
    """
    pause_s = RESTART_S_MIN
    while True:
        outcome = await _follow_one(take, asking or Asking())
        if outcome == "none":
            return
        if outcome == "mute":
            on_silence()
        log.warning("gpus.unreadable", outcome=outcome, again_in_s=pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, RESTART_S_MAX)


async def _follow_one(take: Callable[[list[GpuMemory]], None], asking: Asking) -> str:
    """Read one child until it ends or falls silent; says which."""
    process = await asyncio.create_subprocess_exec(
        *children.runner_command("gpu-memory", []),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=child_environment(os.environ),
        start_new_session=True,
    )
    assert process.stdin is not None  # asked for above
    assert process.stdout is not None
    timeout_s, cards = FIRST_LINE_TIMEOUT_S, [GpuMemory(pci_id="", uuid="", total_bytes=0, free_bytes=0, source="")]
    try:
        with asking.of(process.stdin):
            while True:
                async with asyncio.timeout(timeout_s):
                    line = await process.stdout.readline()
                if not line:
                    return "none" if not cards else "ended"
                cards = [GpuMemory.from_report(card) for card in orjson.loads(line)]
                take(cards)
                timeout_s = LINE_TIMEOUT_S
    except TimeoutError:
        return "mute" if timeout_s == FIRST_LINE_TIMEOUT_S else "silent"
    except (ValueError, TypeError):
        return "garbled"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
