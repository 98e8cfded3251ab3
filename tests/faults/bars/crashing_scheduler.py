"""A scheduler that kills itself at one point of a placement: `python -m tests.faults.bars.crashing_scheduler`.

CRASH_AT names the point, CRASH_MODEL the model whose placement counts. The rest is the real process.
"""

import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

from common.service import run_service
from protos import cluster_pb2, host_pb2
from runner.host.client import HostClient
from scheduler.app import serve
from scheduler.core.state.effects import SaveDesired, Write
from scheduler.redis_store import RedisStore
from scheduler.settings import SchedulerSettings

POINTS = ("planned", "written", "sent", "loading", "ready")
_SERVING = (cluster_pb2.RUNNER_STATE_READY, cluster_pb2.RUNNER_STATE_NO_SLOTS)


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _set_trap(point: str, model: str) -> None:
    write, start = RedisStore.write, HostClient.start

    async def trapped_write(self: RedisStore, effect: Write) -> None:
        is_ours = isinstance(effect, SaveDesired) and effect.record.model_name == model
        if is_ours and point == "planned":
            _crash()
        await write(self, effect)
        if is_ours and point == "written":
            _crash()

    async def trapped_start(
        self: HostClient, address: str, request: host_pb2.StartRequest, **more: Any
    ) -> AsyncIterator[cluster_pb2.RunnerRecord]:
        is_ours, reports = request.model_name == model, 0
        async for record in start(self, address, request, **more):
            reports += 1
            if is_ours and point == "sent":
                _crash()
            if is_ours and point == "loading" and record.status.state == cluster_pb2.RUNNER_STATE_LOADING:
                _crash()
            if is_ours and point == "ready" and record.status.state in _SERVING:
                _crash()
            yield record

    RedisStore.write = trapped_write  # type: ignore[method-assign]
    HostClient.start = trapped_start  # type: ignore[method-assign]


if __name__ == "__main__":
    _set_trap(os.environ["CRASH_AT"], os.environ["CRASH_MODEL"])
    sys.exit(run_service("scheduler", SchedulerSettings, serve))
