"""Client of the inventory: one stream, renewed while the caller listens."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from common.errors import ModelUnavailable, PunaError
from common.grpc.addresses import Channels
from common.grpc.client import call_metadata
from common.grpc.errors import received
from common.grpc.watch import watch
from common.model_details import KeptDetails
from common.seen_inventory import Laid, SeenInventory
from common.telemetry.logs import get_logger
from protos import discovery_pb2, discovery_pb2_grpc

log = get_logger()

# A watcher of changes hears something once a second, if only that nothing has changed.
SILENCE_S_MAX = 2.5


async def watch_changes(
    addresses: str,
    *,
    on_connection: Callable[[bool], None] = lambda _connected: None,
    details: KeptDetails,
) -> AsyncGenerator[SeenInventory, None]:
    """Yield the inventory after every change for a caller that keeps it: only news are sent."""
    laid, known_models = Laid(), 0
    async with aclosing(watch_inventory(addresses, on_connection=on_connection, changes_only=True)) as messages:
        async for message in messages:
            seen = laid.take(message)
            if seen.models_changes != known_models:
                known_models = seen.models_changes
                details.take(model for node in seen.nodes for model in node.models)
            yield seen


async def watch_inventory(
    addresses: str,
    *,
    on_connection: Callable[[bool], None] = lambda _connected: None,
    changes_only: bool = False,
) -> AsyncGenerator[discovery_pb2.Inventory, None]:
    """Iterate over the inventory on connect and after every change; ends only when the caller stops iterating.

    `addresses` as in common/grpc/addresses.py: one of them is watched, another one when it is gone.
    While discovery is unreachable nothing is yielded: what was seen last stays true until it is contradicted.
    Models come with their details once (common/model_details.py).
    `on_connection` hears False when the stream breaks and True with the first inventory of the next one.
    `changes_only`: messages lay over those before, and a process that hangs counts as gone.
    """
    turn = 0
    channels = Channels(addresses, peer="discovery")
    request = discovery_pb2.WatchInventoryRequest(changes_only=changes_only)
    silence_s_max = SILENCE_S_MAX if changes_only else None

    async def stream() -> AsyncGenerator[discovery_pb2.Inventory, None]:
        known = await channels.get()
        stub = discovery_pb2_grpc.DiscoveryStub(known[turn % len(known)])
        async with aclosing(received(stub.WatchInventory(request, metadata=call_metadata()))) as inventories:
            while True:
                try:
                    async with asyncio.timeout(silence_s_max):
                        inventory = await anext(inventories, None)
                except TimeoutError as error:
                    raise ModelUnavailable(f"service unreachable: silent for {silence_s_max} s") from error
                if inventory is None:
                    return
                yield inventory

    def lose(error: PunaError | None, failures: int) -> None:
        nonlocal turn
        if error is not None:
            turn += 1
            if failures == 1:  # once per outage, not once per attempt
                log.warning("inventory.lost", address=addresses, text=error.message)

    try:
        async with aclosing(watch(stream, on_lost=lose, on_connection=on_connection)) as messages:
            async for message in messages:
                yield message
    finally:
        await channels.close()
