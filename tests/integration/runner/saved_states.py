"""The store of a node and the connections of engines in this process to it: the parts of host and runner, real."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from common.clock import SystemClock
from runner.core.states.budget import TierBudget
from runner.host.states.disk import DiskTier
from runner.host.states.link import StateConnection
from runner.host.states.peers import PeerStates
from runner.host.states.store import NodeStates
from runner.serve.state_link import StateLink
from tests.integration.runner.harness import Harness, running
from tests.waiting import until

MIB = 2**20
DOMAIN = b"the model"


def open_node(directory: Path, *, ram_bytes: int = 64 * MIB, disk_bytes: int = 64 * MIB) -> NodeStates:
    """The store of a node; its disk tier is in the directory."""
    return NodeStates(
        SystemClock(),
        ram=TierBudget(bytes_max=ram_bytes, tenant_bytes_max=ram_bytes),
        disk_budget=TierBudget(bytes_max=disk_bytes, tenant_bytes_max=disk_bytes),
        disk=DiskTier(directory / "states", directory / "states.key") if disk_bytes else None,
        orders_path=directory / "forgotten.json",
    )


@asynccontextmanager
async def connected(
    states: NodeStates,
    directory: Path,
    model: Path,
    *,
    domain: bytes = DOMAIN,
    peers: PeerStates | None = None,
    **options: Any,
) -> AsyncIterator[Harness]:
    """An engine whose states go to the node's store."""
    engines: list[Harness] = []

    def forget(salt: str, done: Callable[[], None]) -> None:
        engines[0].engine.forget(salt, done)

    def on_engine(command: Callable[[], None]) -> None:
        engines[0].engine.call(command)

    path = directory / "states.sock"
    path.unlink(missing_ok=True)

    link = StateLink(str(path), forget, on_engine)
    gone = asyncio.Event()
    peers = peers or PeerStates(states, SystemClock(), node_id="this", discovery_addresses="127.0.0.1:1")
    serving = StateConnection(states, peers, SystemClock(), path=str(path), domain=domain)
    connection = asyncio.create_task(serving.run(gone))
    try:
        async with running(model, states=link, **options) as engine:
            engines.append(engine)
            engine.streams.held.saved = link.saved
            link.start()
            await until(lambda: link.hosts > 0, what="the host connects")
            yield engine
    finally:
        await asyncio.to_thread(link.close)
        gone.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                await connection


def count(states: NodeStates) -> int:
    """States of the node, in whichever tier."""
    return len(states._kept)
