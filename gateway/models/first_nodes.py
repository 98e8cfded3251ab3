"""What a cluster that serves nothing yet waits for, as /readyz tells it."""

import asyncio
from dataclasses import dataclass, field

from common.clock import Clock, SystemClock
from common.errors import PunaError
from gateway.models.inventory import node_state
from gateway.ports import Scheduler
from protos import discovery_pb2

# Anybody may ask without a key: however often that is, the scheduler is asked so often, and has so long.
KNOWN_FOR_S = 1.0
ANSWER_WITHIN_S = 1.0
A_NODE = "a node"
ITS_DEVICES = "a node to know its devices"


@dataclass(slots=True)
class FirstNodes:
    """Lives on the event loop."""

    scheduler: Scheduler
    clock: Clock = field(default_factory=SystemClock)
    _missing: str = ""
    _asked_at_s: float | None = None

    async def missing(self) -> str:
        """What has to come before anything can be loaded. Empty: nothing, or nobody is there to say."""
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
            return ""


def missing_in(inventory: discovery_pb2.Inventory) -> str:
    """The same of an inventory. A node that is silent counts as little as none."""
    states = {node_state(node) for node in inventory.nodes} - {"suspect"}
    if not states:
        return A_NODE
    return ITS_DEVICES if states == {"probing"} else ""
