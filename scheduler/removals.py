"""Nodes that operators remove: kept in Redis by the leader, and sent to every discovery as long as they count."""

import asyncio
from contextlib import suppress

from common.clock import MS_PER_S, Clock
from common.errors import InvalidRequest, ModelUnavailable, NodeNotFound, NotLeading, PunaError, StaleFence
from common.grpc.addresses import Channels
from common.grpc.client import ask
from common.network import UNIX_PREFIX
from common.telemetry.logs import get_logger
from common.trust.identity import own_identity
from common.trust.revocations import Revocations
from common.trust.roles import ID_PATTERN
from protos import discovery_pb2, discovery_pb2_grpc
from scheduler.leadership import Leadership
from scheduler.redis_store import RedisStore, StoreUnavailableError
from scheduler.routes import RouteBoard

log = get_logger()

# A discovery that starts without its list has it again after so long.
SEND_S = 1.0
SEND_TIMEOUT_S = 1.0
_RETRY_AFTER_S = 1.0


class Removals:
    """Lives on the event loop. A scheduler that does not lead any more goes on sending what it knows: it stays true."""

    def __init__(
        self, store: RedisStore, leadership: Leadership, board: RouteBoard, clock: Clock, *, discovery: str
    ) -> None:
        """`discovery`: its addresses."""
        self._store = store
        self._leadership = leadership
        self._board = board
        self._clock = clock
        self._channels = Channels(discovery, peer="discovery")
        self._revocations = Revocations(wall_unix_s=clock.wall_unix_s)
        self._read_at_fence = 0

    async def remove(self, node_id: str, *, may_be_absent: bool) -> int:
        """Refuse the certificates that a node has now; return the number of replicas that it had.

        Raises:
            InvalidRequest: the node shows no certificate, so it could not be refused.
            NodeNotFound: no such node is registered.
            NotLeading: another scheduler may.
            ModelUnavailable: it cannot be written down.
        """
        if not ID_PATTERN.fullmatch(node_id):
            raise InvalidRequest("node_id must be the id of a node", param="node_id")
        node = next((one for one in self._board.inventory().nodes if one.id == node_id), None)
        if own_identity() is None or (node is not None and node.address.startswith(UNIX_PREFIX)):
            raise InvalidRequest(
                f"node {node_id!r} shows no certificate and would register again; stop its host, or set PUNA_TRUST"
            )
        if node is None and not may_be_absent:
            raise NodeNotFound(f"no node is called {node_id!r}; --absent revokes the certificates of one that is away")
        before_ms = round(self._clock.wall_unix_s() * MS_PER_S)
        await self._write(node_id, before_ms)
        self._revocations.merge([discovery_pb2.Revocation(node_id=node_id, issued_before_unix_ms=before_ms)])
        await self._send()
        return 0 if node is None else len(node.runners)

    async def run(self) -> None:
        """Read the list at the beginning of each term, and send it; until cancelled."""
        try:
            while True:
                await self._read()
                if self._revocations.entries:
                    await self._send()
                await asyncio.sleep(SEND_S)
        finally:
            await self._channels.close()

    async def _read(self) -> None:
        fence = self._leadership.fence
        if fence in (0, self._read_at_fence):
            return
        with suppress(StoreUnavailableError, StaleFence):  # tried again after a while
            stored = await self._store.load_revocations()
            self._revocations.merge(
                discovery_pb2.Revocation(node_id=node_id, issued_before_unix_ms=before_ms)
                for node_id, before_ms in stored.items()
            )
            for node_id, before_ms in self._revocations.entries.items():
                if stored.get(node_id, 0) < before_ms:  # the store has lost it
                    await self._store.save_revocation(fence, node_id, before_ms)
            self._read_at_fence = fence

    async def _write(self, node_id: str, before_ms: int) -> None:
        fence = self._leadership.fence
        try:
            self._leadership.check(fence)
            await self._read()
            await self._store.save_revocation(fence, node_id, before_ms)
        except StaleFence as error:
            raise NotLeading("this scheduler does not lead", retry_after_s=_RETRY_AFTER_S) from error
        except StoreUnavailableError as error:
            raise ModelUnavailable(str(error), retry_after_s=_RETRY_AFTER_S) from error

    async def _send(self) -> None:
        request = discovery_pb2.RevokeRequest(
            revocations=[
                discovery_pb2.Revocation(node_id=node_id, issued_before_unix_ms=before_ms)
                for node_id, before_ms in self._revocations.entries.items()
            ]
        )
        stubs = [discovery_pb2_grpc.DiscoveryStub(channel) for channel in await self._channels.get()]
        calls = (ask(stub.Revoke, request, timeout_s=SEND_TIMEOUT_S) for stub in stubs)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, PunaError):
                log.info("nodes.removed_not_sent", text=outcome.message)
            elif isinstance(outcome, BaseException):
                raise outcome
