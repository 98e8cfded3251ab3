"""Sets the number of compute threads of the node's runners, as their work begins and ends.

Nothing is kept: the number in use is in the status of a runner, so a host that adopts runners goes on from there.
Runners whose host is gone keep their last number, until the next host looks.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from common.changes import Changes
from common.clock import Clock
from common.errors import PunaError
from common.grpc.client import open_channel
from common.grpc.errors import domain_errors
from common.telemetry.logs import get_logger
from protos import cluster_pb2, runner_pb2, runner_pb2_grpc
from runner.core.threads.cores import CoreClaim, CoreDivision
from runner.host.devices.decode_speeds import SERVING
from runner.host.runners.runner_identity import own_runner

log = get_logger()

LOOK_INTERVAL_S = 0.05  # as often as runners report
SEND_TIMEOUT_S = 1.0


class CoreShares:
    """Owned by the host's event loop."""

    def __init__(self, clock: Clock, *, cores: int) -> None:
        self._clock = clock
        self._division = CoreDivision(cores)
        self._sent: dict[str, tuple[str, int]] = {}  # by placement: process and number; its status comes later

    async def watch(self, changes: Changes, records: Callable[[], Sequence[cluster_pb2.RunnerRecord]]) -> None:
        """Divide whenever runners have said something, or time has made a difference; runs for ever."""
        seen = -1
        while True:
            due_s = self._division.due_s()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due_s is None else max(0.0, due_s - self._clock.now_s())):
                    seen = await changes.beyond(seen)
            await self.look(records())
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def look(self, records: Sequence[cluster_pb2.RunnerRecord]) -> None:
        """Divide the cores between these runners, and send each changed number."""
        by_id = {
            record.placement.placement_id: record
            for record in records
            if record.status.state in SERVING and record.status.threads_max
        }
        self._sent = {key: sent for key, sent in self._sent.items() if key in by_id}
        claims = {key: _claim(record) for key, record in by_id.items()}
        shares = self._division.divide(claims, self._clock.now_s())
        news = [(by_id[key], threads) for key, threads in shares.items() if threads != self._threads_of(by_id[key])]
        await asyncio.gather(*(self._send(record, threads) for record, threads in news))

    def _threads_of(self, record: cluster_pb2.RunnerRecord) -> int:
        process, threads = self._sent.get(record.placement.placement_id, ("", 0))
        return threads if process == record.placement.incarnation else record.status.threads

    async def _send(self, record: cluster_pb2.RunnerRecord, threads: int) -> None:
        placement = record.placement
        request = runner_pb2.UseThreadsRequest(placement=placement, threads=threads)
        try:
            async with open_channel(record.address, own_runner(placement.placement_id)) as channel:
                with domain_errors():
                    await runner_pb2_grpc.RunnerStub(channel).UseThreads(request, timeout=SEND_TIMEOUT_S)
        except PunaError as error:  # it ends, or hangs; else the next look sends it again
            log.debug("runner.threads_not_set", placement=placement.placement_id, text=error.message)
            return
        self._sent[placement.placement_id] = placement.incarnation, threads
        log.debug("runner.threads", placement=placement.placement_id, threads=threads)


def _claim(record: cluster_pb2.RunnerRecord) -> CoreClaim:
    status = record.status
    busy = status.slots_busy > 0 or status.queued > 0
    return CoreClaim(threads_max=status.threads_max, busy=busy, fixed=record.layout.threads > 0)
