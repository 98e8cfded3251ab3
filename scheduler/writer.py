"""Writes what the core wants written, one at a time, in order. The outcome comes back as an event."""

import asyncio
from collections.abc import Callable

from common.errors import ModelUnavailable, StaleFence
from common.telemetry.logs import get_logger
from scheduler.converters import fault_of
from scheduler.core.books.effects import RemoveDesired, SaveAlias, SaveConstraints, SaveDesired, SaveDrain, SaveMargins
from scheduler.core.books.events import (
    AliasSaved,
    AliasSaveFailed,
    ConstraintsSaved,
    ConstraintsSaveFailed,
    DesiredSaved,
    DesiredSaveFailed,
    DrainSaved,
    DrainSaveFailed,
)
from scheduler.core.values.faults import Fault
from scheduler.loop import CoreLoop
from scheduler.redis_store import RedisStore, StoreUnavailableError

log = get_logger()

WRITES_MAX = 4096

Write = SaveDesired | RemoveDesired | SaveConstraints | SaveMargins | SaveDrain | SaveAlias


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
            fault = Fault(reason=ModelUnavailable.reason, message="state store unreachable: too many writes wait")
            if isinstance(effect, SaveDesired):
                self._loop.post_soon(_save_failed(effect, fault))
            elif isinstance(effect, SaveConstraints):
                self._loop.post_soon(_constraints_failed(effect, fault))
            elif isinstance(effect, SaveDrain):
                self._loop.post_soon(_drain_failed(effect, fault))
            elif isinstance(effect, SaveAlias):
                self._loop.post_soon(_alias_failed(effect, fault))

    async def run(self) -> None:
        """One write at a time, in order; until cancelled."""
        while True:
            effect = await self._writes.get()
            match effect:
                case SaveDesired():
                    await self._save(effect)
                case RemoveDesired():
                    await self._remove(effect)
                case SaveConstraints():
                    await self._save_constraints(effect)
                case SaveMargins():
                    await self._save_margins(effect)
                case SaveDrain():
                    await self._save_drain(effect)
                case SaveAlias():
                    await self._save_alias(effect)

    async def _save(self, effect: SaveDesired) -> None:
        record = effect.record
        try:
            self._check(effect.fence)
            await self._store.save(effect.fence, record)
        except StoreUnavailableError as error:
            fault = Fault(reason=ModelUnavailable.reason, message=str(error), retry_after_s=1.0)
            await self._loop.post(_save_failed(effect, fault))
        except StaleFence as error:
            await self._loop.post(_save_failed(effect, fault_of(error)))
        else:
            saved = DesiredSaved(placement_id=record.placement_id, generation=record.generation, phase=record.phase)
            await self._loop.post(saved)

    async def _save_constraints(self, effect: SaveConstraints) -> None:
        try:
            self._check(effect.fence)
            await self._store.save_constraints(effect.fence, effect.model_name, effect.constraints)
        except StoreUnavailableError as error:
            fault = Fault(reason=ModelUnavailable.reason, message=str(error), retry_after_s=1.0)
            await self._loop.post(_constraints_failed(effect, fault))
        except StaleFence as error:
            await self._loop.post(_constraints_failed(effect, fault_of(error)))
        else:
            saved = ConstraintsSaved(
                caller_id=effect.caller_id, model_name=effect.model_name, constraints=effect.constraints
            )
            await self._loop.post(saved)

    async def _save_drain(self, effect: SaveDrain) -> None:
        try:
            self._check(effect.fence)
            await self._store.save_drain(effect.fence, effect.node_id, effect.budget_s)
        except StoreUnavailableError as error:
            fault = Fault(reason=ModelUnavailable.reason, message=str(error), retry_after_s=1.0)
            await self._loop.post(_drain_failed(effect, fault))
        except StaleFence as error:
            await self._loop.post(_drain_failed(effect, fault_of(error)))
        else:
            saved = DrainSaved(caller_id=effect.caller_id, node_id=effect.node_id, budget_s=effect.budget_s)
            await self._loop.post(saved)

    async def _save_alias(self, effect: SaveAlias) -> None:
        try:
            self._check(effect.fence)
            await self._store.save_alias(effect.fence, effect.key, effect.alias)
        except StoreUnavailableError as error:
            fault = Fault(reason=ModelUnavailable.reason, message=str(error), retry_after_s=1.0)
            await self._loop.post(_alias_failed(effect, fault))
        except StaleFence as error:
            await self._loop.post(_alias_failed(effect, fault_of(error)))
        else:
            await self._loop.post(AliasSaved(caller_id=effect.caller_id, key=effect.key, alias=effect.alias))

    async def _remove(self, effect: RemoveDesired) -> None:
        try:
            self._check(effect.fence)
            await self._store.remove(effect.fence, effect.placement_id)
        except (StoreUnavailableError, StaleFence) as error:
            # The next leader finds a record without a runner, and drops it.
            log.warning("store.remove_failed", placement=effect.placement_id, text=str(error))

    async def _save_margins(self, effect: SaveMargins) -> None:
        try:
            self._check(effect.fence)
            await self._store.save_margins(effect.fence, effect.margins)
        except (StoreUnavailableError, StaleFence) as error:
            # The next load of the same kind writes all that is known of it.
            log.warning("store.margins_not_saved", text=str(error))


def _save_failed(effect: SaveDesired, fault: Fault) -> DesiredSaveFailed:
    record = effect.record
    return DesiredSaveFailed(
        placement_id=record.placement_id, generation=record.generation, phase=record.phase, fault=fault
    )


def _drain_failed(effect: SaveDrain, fault: Fault) -> DrainSaveFailed:
    return DrainSaveFailed(caller_id=effect.caller_id, node_id=effect.node_id, fault=fault)


def _alias_failed(effect: SaveAlias, fault: Fault) -> AliasSaveFailed:
    return AliasSaveFailed(caller_id=effect.caller_id, key=effect.key, alias=effect.alias, fault=fault)


def _constraints_failed(effect: SaveConstraints, fault: Fault) -> ConstraintsSaveFailed:
    return ConstraintsSaveFailed(caller_id=effect.caller_id, model_name=effect.model_name, fault=fault)
