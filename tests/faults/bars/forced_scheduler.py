"""A scheduler that leads for ever once it has led: `python -m tests.faults.bars.forced_scheduler`.

It neither looks at the time nor believes the store; only hosts stop what it commands. The rest is the real process.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from common.errors import StaleFence
from common.service import run_service
from common.telemetry.logs import get_logger
from protos import cluster_pb2, host_pb2
from runner.host.client import HostClient
from scheduler.app import serve
from scheduler.core.state.effects import Write
from scheduler.leadership import Leadership
from scheduler.redis_store import LeaderLease, RedisStore
from scheduler.settings import SchedulerSettings

REFUSED = "command.refused"


def _never_lapses(self: Leadership) -> None:
    """Notice nothing."""
    del self


def _force() -> None:
    acquire, write = RedisStore.acquire, RedisStore.write
    held: list[LeaderLease] = []

    async def forced_acquire(self: RedisStore, leader_id: str, *, high_water: int) -> LeaderLease:
        lease = await acquire(self, leader_id, high_water=high_water)  # renews it while it is its own
        if lease.is_mine and not held:
            held.append(lease)
        return held[0] if held else lease

    async def forced_write(self: RedisStore, effect: Write) -> None:
        with suppress(StaleFence):
            await write(self, effect)

    RedisStore.acquire = forced_acquire  # type: ignore[method-assign]
    RedisStore.write = forced_write  # type: ignore[method-assign]
    Leadership.lapse = _never_lapses  # type: ignore[method-assign]
    Leadership.may_act = lambda self, fence: fence == self.fence != 0  # type: ignore[method-assign]


def _note_refusals() -> None:
    start, stop = HostClient.start, HostClient.stop

    async def noted_start(
        self: HostClient, address: str, request: host_pb2.StartRequest, **more: Any
    ) -> AsyncIterator[cluster_pb2.RunnerRecord]:
        try:
            async for record in start(self, address, request, **more):
                yield record
        except StaleFence:
            get_logger().warning(REFUSED, command="start", fence=request.fence.number)
            raise

    async def noted_stop(self: HostClient, address: str, request: host_pb2.StopRequest, **more: Any) -> None:
        try:
            await stop(self, address, request, **more)
        except StaleFence:
            get_logger().warning(REFUSED, command="stop", fence=request.fence.number)
            raise

    HostClient.start = noted_start  # type: ignore[method-assign]
    HostClient.stop = noted_stop  # type: ignore[method-assign]


if __name__ == "__main__":
    _force()
    _note_refusals()
    sys.exit(run_service("scheduler", SchedulerSettings, serve))
