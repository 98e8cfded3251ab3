"""A few template workers, started ahead; one that exceeds its limits is dead and replaced."""

import asyncio
import contextlib
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from weakref import WeakValueDictionary

import orjson

from common.clock import Clock
from common.errors import QueueFull, TemplateFailed
from common.telemetry.logs import get_logger
from gateway import metrics
from gateway.core.dispatch.fairness import NO_TENANT
from gateway.large_texts import beside_loop, count_characters
from gateway.templates.kills import KilledTemplates

log = get_logger()

WORKER_PATH = Path(__file__).with_name("worker.py")
WORKERS = 2
# CPU time is limited by the kernel; this catches a worker that is stopped or starved.
WALL_S_MAX = 5.0
# Time that a request waits for a worker while others render.
WAIT_S_MAX = 10.0
TEMPLATE_BYTES_MAX = 256 * 1024


_KILLED = (
    "the chat template ran over its time or memory limit (1 s of CPU time, 256 MiB); shorten the conversation or use"
    " another template"
)


class TemplatePool:
    """Renders templates, at most WORKERS at a time and one for each tenant. `start` before use, `stop` after."""

    def __init__(self, clock: Clock, tenant: Callable[[], str]) -> None:
        """`tenant` returns the tenant of the present task; NO_TENANT, where there are no keys, has every worker."""
        self._clock = clock
        self._tenant = tenant
        self._killed = KilledTemplates()
        self._lanes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue(maxsize=WORKERS)

    async def start(self) -> None:
        """Start the workers, so that the first request finds one."""
        for _ in range(WORKERS):
            worker = _Worker()
            await worker.start()
            self._idle.put_nowait(worker)

    async def stop(self) -> None:
        """End the workers. Nothing may be rendering any more."""
        while not self._idle.empty():
            await self._idle.get_nowait().kill()

    async def render(self, template: str, variables: Mapping[str, object], *, is_small: bool = False) -> str:
        """Render a template to text. `is_small`: if it runs over its limits, that is not due to the variables.

        Raises:
            TemplateFailed: the template refused, is broken, or ran over its limits, now or in the last minute; tell
                the client.
            QueueFull: no worker became free in time.
        """
        if len(template.encode()) > TEMPLATE_BYTES_MAX:
            raise _failed(f"the chat template is larger than {TEMPLATE_BYTES_MAX} bytes", is_flaw=True)
        frame = await beside_loop(count_characters(variables), lambda: _frame(template, variables))
        tenant = self._tenant()
        # No tenants, no lanes: a lock of its own for each.
        lane = asyncio.Lock() if tenant == NO_TENANT else self._lanes.setdefault(tenant, asyncio.Lock())
        worker = await self._take_worker(lane)
        try:
            if message := self._killed.find(template, tenant=tenant, frame_bytes=len(frame), now_s=self._clock.now_s()):
                metrics.STOPPED_TEMPLATES.labels(how="refused").inc()
                raise _failed(message, is_flaw=True)
            try:
                rendered = await worker.ask(frame)
            except TemplateFailed as error:
                metrics.STOPPED_TEMPLATES.labels(how="killed").inc()
                if error.is_flaw:
                    self._killed.add(
                        template,
                        tenant=tenant,
                        frame_bytes=len(frame),
                        is_small=is_small,
                        message=error.message,
                        now_s=self._clock.now_s(),
                    )
                raise
        finally:
            self._idle.put_nowait(worker)
            lane.release()
        answer = await beside_loop(len(rendered), lambda: orjson.loads(rendered))
        if "error" in answer:
            raise _failed(f"chat template: {answer['error']}", is_flaw=answer.get("flaw", False))
        text: str = answer["text"]
        return text

    async def _take_worker(self, lane: asyncio.Lock) -> "_Worker":
        """Take a worker for one rendering, once the tenant has no other. Give back both.

        Raises:
            QueueFull: none became free in time.
        """
        if not lane.locked() and not self._idle.empty():  # nearly always: no timer
            await lane.acquire()
            return self._idle.get_nowait()
        try:
            async with asyncio.timeout(WAIT_S_MAX), contextlib.AsyncExitStack() as held:
                await lane.acquire()
                held.callback(lane.release)
                worker = await self._idle.get()
                held.pop_all()
                return worker
        except TimeoutError as error:
            raise QueueFull("too many prompts are being rendered", retry_after_s=1.0) from error


class _Worker:
    """One process. Asked by one request at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._was_late = False

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(WORKER_PATH),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"LC_ALL": "C.UTF-8"},
        )

    async def ask(self, frame: bytes) -> bytes:
        """Send a frame, return the answer's bytes. Whatever goes wrong, the process is gone afterwards."""
        if self._process is None:
            await self.start()
        # Its end is the end of the exchange, so a timer does what asyncio.timeout would, for less.
        self._was_late = False
        timer = asyncio.get_running_loop().call_later(WALL_S_MAX, self._end_process)
        try:
            return await self._exchange(frame)
        except (OSError, asyncio.IncompleteReadError) as error:
            log.warning("template.killed", limit="cpu, memory or wall time")
            await self.kill()
            # Of its own CPU time or memory, unless it was ended here: others may have had the processors.
            flaw = None if self._was_late else True
            raise _failed(_KILLED, is_flaw=flaw) from error
        except asyncio.CancelledError:
            # The client left; what the process is doing is of no use, and its answer would confuse the next reader.
            await self.kill()
            raise
        finally:
            timer.cancel()

    def _end_process(self) -> None:
        if self._process is not None:
            self._was_late = True
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def kill(self) -> None:
        """End the process and reap it; the next request starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()

    async def _exchange(self, frame: bytes) -> bytes:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(frame)
        await self._process.stdin.drain()
        header = await self._process.stdout.readexactly(4)
        return await self._process.stdout.readexactly(struct.unpack(">I", header)[0])


def _frame(template: str, variables: Mapping[str, object]) -> bytes:
    content = orjson.dumps({"template": template, "variables": variables})
    return struct.pack(">I", len(content)) + content


def _failed(text: str, *, is_flaw: bool | None) -> TemplateFailed:
    error = TemplateFailed(text)
    error.is_flaw = is_flaw
    return error
