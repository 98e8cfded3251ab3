"""A host registers with every discovery there is, so that either of two may go."""

import asyncio
from collections.abc import Callable

from common.changes import Changes
from common.grpc.addresses import RESOLVE_S, resolve
from runner.host import metrics
from runner.host.reporter import Identity, Reporter, Sections


class Registrations:
    """One reporter for each address behind the setting. Owned by its `run` task."""

    def __init__(self, addresses: str, identity: Identity, snapshot: Callable[[], Sections], changes: Changes) -> None:
        self._addresses = addresses
        self._identity = identity
        self._snapshot = snapshot
        self._changes = changes
        self._reporters: dict[str, Reporter] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Register and stay registered; runs for ever unless a newer host has replaced this one.

        Raises:
            PlacementMismatch: another host process speaks for this node.
        """
        metrics.CONNECTED.set_function(lambda: sum(reporter.is_registered for reporter in self._reporters.values()))
        try:
            while True:
                await self._turn_to(await resolve(self._addresses))
                ended, _ = await asyncio.wait(
                    self._tasks.values(), timeout=RESOLVE_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in ended:
                    task.result()
        finally:
            await self._turn_to([])

    async def _turn_to(self, addresses: list[str]) -> None:
        gone = [address for address in self._tasks if address not in addresses]
        tasks = [self._tasks.pop(address) for address in gone]
        for address, task in zip(gone, tasks, strict=True):
            del self._reporters[address]
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for address in addresses:
            if address not in self._tasks:
                self._reporters[address] = Reporter(address, self._identity, self._snapshot, self._changes)
                self._tasks[address] = asyncio.create_task(self._reporters[address].run(), name=f"report {address}")
