"""Writes what the core wants written, one at a time, in order. The outcome comes back as an event."""

import asyncio
from collections.abc import Callable

from common.errors import ModelUnavailable, StaleFence
from common.telemetry.logs import get_logger
from scheduler.converters import fault_of
from scheduler.core.state.effects import (
    RemoveDesired,
    Save,
    SaveMargins,
    Write,
)
from scheduler.core.state.events import SaveEnded
from scheduler.core.values.faults import Fault
from scheduler.loop import CoreLoop
from scheduler.redis_store import RedisStore, StoreUnavailableError

log = get_logger()

WRITES_MAX = 4096


class Writer:
    """Owns the order of writes."""

    def __init__(self, loop: CoreLoop, store: RedisStore, check: Callable[[int], None]) -> None:
        """`check` raises StaleFence where a fence may not act any more."""
        self._loop = loop
        self._store = store
        self._check = check
        self._writes: asyncio.Queue[Write] = asyncio.Queue(maxsize=WRITES_MAX)

    def put(self, effect: Write) -> None:
        """Have it written; never waits."""
        try:
            self._writes.put_nowait(effect)
        except asyncio.QueueFull:
            if isinstance(effect, Save):
                text = "state store unreachable: too many writes wait"
                fault = Fault(reason=ModelUnavailable.reason, message=text)
                self._loop.post_soon(SaveEnded(save=effect, fault=fault))

    async def run(self) -> None:
        """Make one write at a time, in order, until cancelled."""
        while True:
            effect = await self._writes.get()
            try:
                self._check(effect.fence)
                await self._store.write(effect)
            except StoreUnavailableError as error:
                fault = Fault(reason=ModelUnavailable.reason, message=str(error), retry_after_s=1.0)
                await self._report_failure(effect, fault)
            except StaleFence as error:
                await self._report_failure(effect, fault_of(error))
            else:
                if isinstance(effect, Save):
                    await self._loop.post(SaveEnded(save=effect))

    async def _report_failure(self, effect: Write, fault: Fault) -> None:
        match effect:
            case RemoveDesired():
                # The next leader finds a record without a runner, and drops it.
                log.warning("store.remove_failed", placement=effect.placement_id, text=fault.message)
            case SaveMargins():
                # The next load of the same kind writes all that is known of it.
                log.warning("store.margins_not_saved", text=fault.message)
            case _:
                await self._loop.post(SaveEnded(save=effect, fault=fault))
