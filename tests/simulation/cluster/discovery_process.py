"""Discovery: the real servicer and registry."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from common.trust.revocations import Revocations
from discovery.registry import NodeRegistry
from discovery.servicer import DiscoveryServicer
from protos import discovery_pb2
from tests.simulation.cluster.network import Network, Process


class _NoCertificate:
    """The context of a call on a listener without certificates."""

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return nothing: no caller shows a certificate."""
        return {}


CONTEXT: Any = _NoCertificate()


class SimDiscovery(Process):
    """One life of discovery."""

    def __init__(self, network: Network) -> None:
        super().__init__(network, "discovery", "discovery")
        registry = NodeRegistry(self.clock)
        self.registry = registry
        self._servicer = DiscoveryServicer(registry, self.clock, Revocations(wall_unix_s=self.clock.wall_unix_s))
        self.spawn(registry.watch_silence(), "silence")

    def register(
        self, reports: "asyncio.Queue[discovery_pb2.HostReport]"
    ) -> AsyncGenerator[discovery_pb2.RegisterAck, None]:
        """Keep a node in the inventory while the stream is open."""

        async def messages() -> AsyncIterator[discovery_pb2.HostReport]:
            while True:
                report = await reports.get()
                await self.awake()
                yield report

        return self._servicer.Register(messages(), CONTEXT)  # type: ignore[return-value]  # a generator

    def inventories(self) -> AsyncIterator[discovery_pb2.Inventory]:
        """Return the inventory and its changes."""
        return self._servicer.WatchInventory(discovery_pb2.WatchInventoryRequest(changes_only=True), CONTEXT)
