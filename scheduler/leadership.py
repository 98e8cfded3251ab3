"""Keeps or seeks leadership. The lease is for efficiency; what makes two leaders harmless is the fence."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping

from common.clock import Clock
from common.errors import StaleFence
from common.telemetry.logs import get_logger
from scheduler import metrics
from scheduler.core.state.events import AliasesRead, LeadershipGained, LeadershipLost
from scheduler.core.values.faults import Fault, not_leading, store_unreachable
from scheduler.core.values.routing_table import ModelAlias
from scheduler.redis_store import LeaderLease, RedisStore, StoreUnavailableError

log = get_logger()

RENEW_S = 1.5
# Less than the lease's 5 s, so that clocks whose rates differ by up to 1.43 do not make two leaders.
SELF_STOP_S = 3.5
STANDBY_POLL_S = 1.0
RETRY_S = 0.3
JITTER = 0.2


class Leadership:
    """One task runs it; `may_act` is asked before every command."""

    def __init__(
        self,
        store: RedisStore,
        clock: Clock,
        leader_id: str,
        *,
        on_change: Callable[[LeadershipGained | LeadershipLost | AliasesRead], None],
        on_end: Callable[[], None],
    ) -> None:
        """`leader_id` ends with "@address", which is where others are sent. `on_end` stops what acts for this term."""
        self._store = store
        self._clock = clock
        self._on_change = on_change
        self._on_end = on_end
        self._high_water = 0
        self._valid_until_s = 0.0
        self._fault: Fault | None = None  # why it does not lead, or may not any more in a moment
        self._poke = asyncio.Event()
        self._resigned = False
        self._aliases: Mapping[str, ModelAlias] | None = None  # as a standby last read them
        self.leader_id = leader_id
        self.fence = 0  # 0: does not lead

    def may_act(self, fence: int) -> bool:
        """Return True if a command with this fence may still be sent."""
        return fence == self.fence and fence != 0 and self._clock.now_s() < self._valid_until_s

    def lapse(self) -> LeadershipLost | None:
        """Return the loss of leadership if its term is over: a process that was stopped notices it here first."""
        if self.fence and self._clock.now_s() >= self._valid_until_s:
            self._poke.set()
            return self._end_term(self._fault or not_leading("the lease was not renewed in time"))
        return None

    def check(self, fence: int) -> None:
        """Check the term before a command. Until the command arrives only the host's own check protects.

        Raises:
            StaleFence: this scheduler does not lead with this fence any more.
        """
        if not self.may_act(fence):
            raise StaleFence(f"this scheduler does not lead with fence {fence} any more")

    def check_now(self) -> None:
        """Ask the store at once."""
        self._poke.set()

    def drop(self, high_water: int) -> None:
        """Drop the term after a host has seen a higher fence: lead again only above it."""
        self._high_water = max(self._high_water, high_water)  # the store judges it, by the clock of Redis
        self._poke.set()

    async def run(self) -> None:
        """Seek, keep and lose leadership in turn, until cancelled."""
        while not self._resigned:
            pause_s = await self._step()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._poke.wait()
            self._poke.clear()

    async def resign(self) -> None:
        """Release the lease in an orderly stop, so that the next leader need not wait. This one never leads again."""
        self._resigned = True
        if self.fence:
            self._lose(not_leading("this scheduler is going down"))
        with contextlib.suppress(StoreUnavailableError):  # also a lease whose term has not begun
            await self._store.release(self.leader_id)

    async def _step(self) -> float:
        """Make one call to the store; return the pause before the next."""
        asked_at_s = self._clock.now_s()
        left_s = self._valid_until_s - asked_at_s if self.fence else None
        try:
            async with asyncio.timeout(None if left_s is None else max(0.0, left_s)):
                high_water = self._high_water
                lease = await self._store.acquire(self.leader_id, high_water=high_water)
                if lease.is_mine and self._high_water == high_water:
                    self._high_water = 0  # the fence is above it, or the store did not believe it
                if self._resigned:
                    await self._store.release(self.leader_id)
                    return STANDBY_POLL_S
                if lease.is_mine and (lease.fence != self.fence or lease.lost_writes):
                    await self._lead(lease, asked_at_s)
                elif lease.is_mine:
                    self._valid_until_s, self._fault = asked_at_s + SELF_STOP_S, None
                else:
                    await self._read_aliases()
        except StoreUnavailableError as error:
            return self._without_store(str(error))
        except TimeoutError:
            return self._without_store("state store unreachable: the lease could not be renewed in time")
        if not lease.is_mine:
            self._lose(not_leading(f"another scheduler leads: {lease.holder.rpartition('@')[2] or lease.holder}"))
            return _jittered(STANDBY_POLL_S)
        return _jittered(RENEW_S)

    async def _lead(self, lease: LeaderLease, asked_at_s: float) -> None:
        desired = await self._store.load()
        constraints = await self._store.load_constraints()
        margins = await self._store.load_margins()
        drains = await self._store.load_drains()
        aliases = await self._store.load_aliases()
        self._valid_until_s = asked_at_s + SELF_STOP_S
        log.info("leadership.gained", fence=lease.fence, before=self.fence, placements=len(desired))
        self.fence, self._fault = lease.fence, None
        metrics.LEADER.set(1)
        metrics.TERMS.labels(change="gained").inc()
        metrics.FENCE.set(lease.fence)
        self._on_change(
            LeadershipGained(
                fence=lease.fence,
                leader_id=self.leader_id,
                desired=desired,
                constraints=constraints,
                margins=margins,
                drains=drains,
                aliases=aliases,
            )
        )

    async def _read_aliases(self) -> None:
        """Read the aliases for gateways that watch this standby; the leader may be gone a moment later."""
        aliases = await self._store.load_aliases()
        if aliases != self._aliases and not self.fence:
            self._aliases = aliases
            if aliases is not None:
                self._on_change(AliasesRead(aliases))

    def _without_store(self, why: str) -> float:
        """Continue to lead until the lease ends, with more frequent tries."""
        left_s = self._valid_until_s - self._clock.now_s()
        if self.fence and left_s > 0:
            log.warning("leadership.renewal_failed", text=why, left_s=round(left_s, 2))
            self._fault = store_unreachable(why)
            return min(_jittered(RETRY_S), left_s)
        self._lose(store_unreachable(why))
        return _jittered(STANDBY_POLL_S)

    def _lose(self, fault: Fault) -> None:
        event = self._end_term(fault)
        if event is not None:
            self._on_change(event)

    def _end_term(self, fault: Fault) -> LeadershipLost | None:
        """End the term; None if neither the term nor the reason is new."""
        if self.fence:
            log.warning("leadership.lost", fence=self.fence, text=fault.message)
            metrics.TERMS.labels(change="lost").inc()
        elif fault != self._fault:
            log.warning("leadership.absent", text=fault.message)
        else:
            return None
        self.fence, self._valid_until_s, self._fault = 0, 0.0, fault
        self._on_end()
        metrics.LEADER.set(0)
        metrics.FENCE.set(0)
        return LeadershipLost(fault=fault)


def _jittered(pause_s: float) -> float:
    """Return a shorter pause: the timers of the lease are upper bounds."""
    return pause_s * (1 - JITTER * random.random())
