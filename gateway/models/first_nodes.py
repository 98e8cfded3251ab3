"""Parts that a new cluster still waits for, as shown by /readyz."""

import asyncio
from dataclasses import dataclass, field

from common.clock import Clock, SystemClock
from common.errors import PunaError
from gateway.converters.inventory import node_state
from protos import discovery_pb2
from scheduler.client import SchedulerClient

# Needs no key: any number of requests cost the scheduler one call in this time, which may take so long.
KNOWN_FOR_S = 1.0
ANSWER_WITHIN_S = 1.0
A_SCHEDULER = "a scheduler that answers"
A_NODE = "a node"
ITS_DEVICES = "a node to know its devices"


@dataclass(slots=True)
class FirstNodes:
    """Lives on the event loop."""

    scheduler: SchedulerClient
    clock: Clock = field(default_factory=SystemClock)
    _missing: str = ""
    _asked_at_s: float | None = None

    async def missing(self) -> str:
        """Name the part that is missing before a model can load. Empty if none is."""
        now_s = self.clock.now_s()
        if self._asked_at_s is None or now_s - self._asked_at_s >= KNOWN_FOR_S:
            self._asked_at_s = now_s
            self._missing = await self._ask()
        return self._missing

    async def _ask(self) -> str:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return missing_in(await self.scheduler.list_nodes())
        except (PunaError, TimeoutError):
            return A_SCHEDULER


def missing_in(inventory: discovery_pb2.Inventory) -> str:
    """Name the missing part by an inventory. A silent node counts as none."""
    states = {node_state(node) for node in inventory.nodes} - {"suspect"}
    if not states:
        return A_NODE
    return ITS_DEVICES if states == {"probing"} else ""
