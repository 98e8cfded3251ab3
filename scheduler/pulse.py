"""Liveness of a scheduler's event loop: a stopped process keeps its connections and answers nothing."""

import asyncio

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

# Long for an event loop that plans; with the pause before it, less than the two seconds that control calls may take.
SILENCE_S = 1.0
BEAT_S = 0.25


class Pulse:
    """Checks the health of one scheduler again and again, so that calls to a silent one are refused at once."""

    def __init__(self, channel: aio.Channel) -> None:
        """Begin to check; needs a running event loop."""
        self._check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]
        self._silent = asyncio.Event()
        self._task = asyncio.create_task(self._beat(), name="scheduler pulse")

    def stop(self) -> None:
        """Check no more."""
        self._task.cancel()

    @property
    def is_silent(self) -> bool:
        """Return True from the first check without an answer until the next one that is answered."""
        return self._silent.is_set()

    async def silence(self) -> None:
        """Return once the scheduler is silent; at once if it is known to be."""
        await self._silent.wait()

    async def _beat(self) -> None:
        while True:
            try:
                await self._check(health_pb2.HealthCheckRequest(), timeout=SILENCE_S)
                self._silent.clear()
            except aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self._silent.set()
                elif error.code() is not grpc.StatusCode.UNAVAILABLE:  # a lost connection ends the calls itself
                    self._silent.clear()
            except aio.UsageError:
                return  # the channel was closed, because its address is gone
            await asyncio.sleep(BEAT_S)
