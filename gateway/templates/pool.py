"""Renders templates in workers, and remembers those that exceeded their limits."""

from collections.abc import Callable, Mapping

import orjson

from common.clock import Clock
from common.errors import QueueFull, TemplateFailed
from common.sandbox.worker_pool import WorkerLost, WorkerPool
from common.telemetry.logs import get_logger
from gateway import metrics
from gateway.core.dispatch.fairness import NO_TENANT
from gateway.large_texts import beside_loop, count_characters
from gateway.templates.kills import KilledTemplates

log = get_logger()

TEMPLATE_BYTES_MAX = 256 * 1024
_KILLED = (
    "the chat template ran over its time or memory limit (1 s of CPU time, 256 MiB); shorten the conversation or use"
    " another template"
)


class TemplatePool:
    """Renders templates, one at a time for each tenant. `stop` after use."""

    def __init__(self, clock: Clock, tenant: Callable[[], str]) -> None:
        """`tenant` returns the tenant of the present task; NO_TENANT, where there are no keys, has every worker."""
        self._clock = clock
        self._tenant = tenant
        self._killed = KilledTemplates()
        self._workers = WorkerPool("gateway.templates.worker")

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
        tenant = self._tenant()
        async with self._workers.worker(None if tenant == NO_TENANT else tenant) as worker:
            if message := self._killed.find(template, tenant=tenant, frame_bytes=len(frame), now_s=self._clock.now_s()):
                metrics.STOPPED_TEMPLATES.labels(how="refused").inc()
                raise _failed(message, is_flaw=True)
            try:
                return await worker.ask(frame)
            except WorkerLost as error:
                log.warning("template.killed", limit="cpu, memory or wall time")
                metrics.STOPPED_TEMPLATES.labels(how="killed").inc()
                # If its wall time passed, others may have had the processors.
                if not error.was_late:
                    self._killed.add(
                        template,
                        tenant=tenant,
                        frame_bytes=len(frame),
                        is_small=is_small,
                        message=_KILLED,
                        now_s=self._clock.now_s(),
                    )
                raise _failed(_KILLED, is_flaw=None if error.was_late else True) from error


def _failed(text: str, *, is_flaw: bool | None) -> TemplateFailed:
    error = TemplateFailed(text)
    error.is_flaw = is_flaw
    return error
