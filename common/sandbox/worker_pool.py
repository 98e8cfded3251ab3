"""A few processes that compute for requests, each within limits; one that ends or is left is replaced."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from weakref import WeakValueDictionary

from common.sandbox.worker_process import HEADER

WORKERS = 2
# CPU time is limited by the kernel; this catches a worker that is stopped or starved.
WALL_S_MAX = 10.0
# Time that a request waits for a worker while others compute.
WAIT_S_MAX = 10.0
_ROOT = Path(__file__).resolve().parents[2]


class WorkerLost(Exception):  # says what happened, as all errors here do
    """The process ended before its answer. `was_late`: it was ended for its wall time, not by a limit of its own."""

    def __init__(self, *, was_late: bool) -> None:
        super().__init__("a worker ended before its answer")
        self.was_late = was_late


class WorkerPool:
    """Processes of one module, a few at a time and `per_sender` for each sender. They start with their first use."""

    def __init__(
        self, module: str, *arguments: str, workers: int = WORKERS, per_sender: int = 1, niceness: int = 0
    ) -> None:
        """Name the module whose process, when it is run with the arguments, calls `serve_frames`."""
        self._per_sender = per_sender
        self._lanes: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._idle: asyncio.Queue[Worker] = asyncio.Queue(maxsize=workers)
        for _ in range(workers):
            self._idle.put_nowait(Worker(module, *arguments, niceness=niceness))

    async def start(self) -> None:
        """Start the processes ahead, so that the first request finds one."""
        for _ in range(self._idle.qsize()):
            worker = self._idle.get_nowait()
            await worker.start()
            self._idle.put_nowait(worker)

    async def stop(self) -> None:
        """End the processes. Nothing may be using one any more."""
        while not self._idle.empty():
            await self._idle.get_nowait().kill()

    @contextlib.asynccontextmanager
    async def worker(self, sender: str) -> "AsyncIterator[Worker]":
        """Have a worker, once the sender has fewer than it may.

        Raises:
            TimeoutError: none became free in WAIT_S_MAX.
        """
        lane = self._lanes.setdefault(sender, asyncio.Semaphore(self._per_sender))
        worker = await self._take(lane)
        try:
            yield worker
        finally:
            self._idle.put_nowait(worker)
            lane.release()

    async def _take(self, lane: asyncio.Semaphore) -> "Worker":
        if not lane.locked() and not self._idle.empty():  # nearly always: no timer
            await lane.acquire()
            return self._idle.get_nowait()
        async with asyncio.timeout(WAIT_S_MAX), contextlib.AsyncExitStack() as held:
            await lane.acquire()
            held.callback(lane.release)
            worker = await self._idle.get()
            held.pop_all()
            return worker


class Worker:
    """One process. Asked by one request at a time."""

    def __init__(self, module: str, *arguments: str, niceness: int = 0) -> None:
        self._command = ("-s", "-m", module, *arguments)
        self._niceness = niceness
        self._process: asyncio.subprocess.Process | None = None
        self._was_late = False

    async def start(self) -> None:
        """Start the process, unless it runs."""
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._command,
                cwd=_ROOT,  # where its modules are, and not the files of the directory that the service runs in
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={"LC_ALL": "C.UTF-8"},
            )
            if self._niceness:
                own = os.getpriority(os.PRIO_PROCESS, 0)
                with contextlib.suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, self._process.pid, own + self._niceness)

    async def ask(self, content: bytes) -> bytes:
        """Send a frame, return the content of the answer. Whatever goes wrong, another process has begun to start.

        Raises:
            WorkerLost: there is no answer.
        """
        await self.start()
        # Its end is the end of the exchange, so a timer does what asyncio.timeout would, for less.
        self._was_late = False
        timer = asyncio.get_running_loop().call_later(WALL_S_MAX, self._end_process)
        try:
            return await self._exchange(content)
        except (OSError, asyncio.IncompleteReadError) as error:
            await self._replace()
            raise WorkerLost(was_late=self._was_late) from error
        except asyncio.CancelledError:
            # The client left; what the process is doing is of no use, and its answer would confuse the next reader.
            await self._replace()
            raise
        finally:
            timer.cancel()

    def _end_process(self) -> None:
        if self._process is not None:
            self._was_late = True
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _replace(self) -> None:
        await self.kill()
        await self.start()

    async def kill(self) -> None:
        """End the process and reap it."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()

    async def _exchange(self, content: bytes) -> bytes:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(HEADER.pack(len(content)) + content)
        await self._process.stdin.drain()
        header = await self._process.stdout.readexactly(HEADER.size)
        return await self._process.stdout.readexactly(*HEADER.unpack(header))
