"""Renders templates in workers, and remembers those that exceeded their limits."""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from weakref import WeakValueDictionary

import orjson

from common.clock import Clock
from common.errors import QueueFull, TemplateFailed
from common.sandbox.worker_pool import WAIT_S_MAX, WORKERS, WorkerLost, WorkerPool
from common.telemetry.logs import get_logger
from common.tenant_cache import TenantCache
from gateway import metrics
from gateway.large_texts import beside_loop, count_characters
from gateway.templates.kills import KilledTemplates

log = get_logger()

TEMPLATE_BYTES_MAX = 256 * 1024
# Templates that have rendered, of all senders.
RENDERED_MAX = 256
# Renderings of a sender at once that are known to end.
RENDERINGS_MAX = max(1, min(WORKERS, len(os.sched_getaffinity(0)) - 1))
_KILLED = (
    "the chat template ran over its time or memory limit (1 s of CPU time, 256 MiB); shorten the conversation or use"
    " another template"
)


class TemplatePool:
    """Renders templates. `stop` after use.

    A sender renders with one worker at a time what may run over its limits: a template that has not rendered for it
    yet, and all of them for a minute after one that did. So it never has every worker until they are ended. The others
    leave one core to the event loop, which answers older requests while the newest are rendered.
    """

    def __init__(self, clock: Clock, sender: Callable[[], str]) -> None:
        """`sender` returns the tenant of the present task, or the address of its client where there are no keys."""
        self._clock = clock
        self._sender = sender
        self._killed = KilledTemplates()
        self._rendered: TenantCache[int, bool] = TenantCache(RENDERED_MAX)  # by sender and hash of the template
        # By sender and whether its renderings are risky.
        self._lanes: WeakValueDictionary[tuple[str, bool], asyncio.Semaphore] = WeakValueDictionary()
        self._workers = WorkerPool("gateway.templates.worker", per_sender=WORKERS)

    async def start(self) -> None:
        """Start the workers, so that the first request finds one."""
        await self._workers.start()

    async def stop(self) -> None:
        """End the workers. Nothing may be rendering any more."""
        await self._workers.stop()

    async def render(self, template: str, variables: Mapping[str, object], *, is_small: bool = False) -> str:
        """Render a template to text. `is_small`: if it runs over its limits, that is not due to the variables.

        Raises:
            TemplateFailed: the template refused, is broken, or ran over its limits, now or in the last minute; tell
                the client.
            QueueFull: no worker became free in time.
        """
        if len(template.encode()) > TEMPLATE_BYTES_MAX:
            raise _failed(f"the chat template is larger than {TEMPLATE_BYTES_MAX} bytes", is_flaw=True)
        question = {"template": template, "variables": variables}
        frame = await beside_loop(count_characters(variables), lambda: orjson.dumps(question))
        try:
            rendered = await self._render(template, frame, is_small=is_small)
        except TimeoutError as error:
            raise QueueFull("too many prompts are being rendered", retry_after_s=1.0) from error
        answer = await beside_loop(len(rendered), lambda: orjson.loads(rendered))
        if "error" in answer:
            raise _failed(f"chat template: {answer['error']}", is_flaw=answer.get("flaw", False))
        text: str = answer["text"]
        return text

    async def _render(self, template: str, frame: bytes, *, is_small: bool) -> bytes:
        sender = self._sender()
        async with AsyncExitStack() as held:
            is_risky = self._is_risky(template, sender)
            at_once = 1 if is_risky else RENDERINGS_MAX
            lane = self._lanes.setdefault((sender, is_risky), asyncio.Semaphore(at_once))
            async with asyncio.timeout(WAIT_S_MAX):
                await held.enter_async_context(lane)
            worker = await held.enter_async_context(self._workers.worker(sender))
            if message := self._killed.find(template, sender=sender, frame_bytes=len(frame), now_s=self._clock.now_s()):
                metrics.STOPPED_TEMPLATES.labels(how="refused").inc()
                raise _failed(message, is_flaw=True)
            try:
                rendered = await worker.ask(frame)
            except WorkerLost as error:
                log.warning("template.killed", limit="cpu, memory or wall time")
                metrics.STOPPED_TEMPLATES.labels(how="killed").inc()
                # If its wall time passed, others may have had the processors.
                if not error.was_late:
                    self._killed.add(
                        template,
                        sender=sender,
                        frame_bytes=len(frame),
                        is_small=is_small,
                        message=_KILLED,
                        now_s=self._clock.now_s(),
                    )
                raise _failed(_KILLED, is_flaw=None if error.was_late else True) from error
        self._rendered.put(sender, hash(template), True)
        return rendered

    def _is_risky(self, template: str, sender: str) -> bool:
        return not self._rendered.get(sender, hash(template)) or self._killed.has_killed(sender, self._clock.now_s())


def _failed(text: str, *, is_flaw: bool | None) -> TemplateFailed:
    error = TemplateFailed(text)
    error.is_flaw = is_flaw
    return error
