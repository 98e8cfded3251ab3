"""Client of the scheduler for gateways and the command line: any of several addresses, domain errors only."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Self, TypeVar

from common.errors import ModelUnavailable, PunaError
from common.grpc.addresses import Channels
from common.grpc.client import ask, call_metadata
from common.grpc.errors import UNREACHABLE, received
from common.grpc.watch import watch
from common.model_details import KeptDetails
from common.telemetry.logs import get_logger
from protos import discovery_pb2, scheduler_pb2, scheduler_pb2_grpc
from scheduler.leader_search import ELSEWHERE, LEADER_WAIT_S, LeaderSearch, for_clients
from scheduler.pulse import Pulse

if TYPE_CHECKING:
    from grpc import aio

    from protos.scheduler_pb2_grpc import SchedulerAsyncStub as Stub

log = get_logger()

Request = TypeVar("Request")
Response = TypeVar("Response")

CALL_TIMEOUT_S = 5.0
# A test of a device has 30 s, and may wait for the one before it.
CLEAR_TIMEOUT_S = 70.0
_SILENT = f"{UNREACHABLE}: it does not answer"


class SchedulerClient:
    """Commands go to the scheduler that leads: the others refuse, and then the next address is tried.

    While one is expected to lead, it is waited for; then, or where it cannot write a command down, calls raise
    ModelUnavailable. Errors name no address: they reach clients of the gateway.
    """

    def __init__(self, addresses: str, *, leader_wait_s: float = LEADER_WAIT_S) -> None:
        """`addresses`: one, or several with commas between them; a name may stand for several, too.

        Channels connect when first used.
        """
        self._leader_wait_s = leader_wait_s
        self._channels = Channels(addresses, peer="scheduler")
        self._pulses: dict[aio.Channel, Pulse] = {}
        self._preferred = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; running calls end."""
        for pulse in self._pulses.values():
            pulse.stop()
        self._pulses.clear()
        await self._channels.close()

    async def ensure_model(
        self, request: scheduler_pb2.EnsureModelRequest
    ) -> AsyncIterator[scheduler_pb2.EnsureModelEvent]:
        """Have a replica of a model; the last event is `ready`. Leaving the iteration aborts no load.

        A load whose scheduler stops leading goes on with the next one; a move, which may have happened, ends.

        Raises:
            ModelNotFound, BadModelFile, InsufficientMemory: it will not work.
            ModelUnavailable, QueueFull: not now; try again after `retry_after_s`.
        """
        search, heard = LeaderSearch(self._leader_wait_s), False
        while True:
            call = None
            try:
                stub, pulse = await self._stub()
                call = stub.EnsureModel(request, metadata=call_metadata())
                events = received(call)
                event = await self._while_alive(anext(events, None), pulse)
                while event is not None:
                    search, heard = LeaderSearch(self._leader_wait_s), True
                    yield event
                    event = await anext(events, None)
            except ELSEWHERE as error:
                if heard and request.move_to:
                    raise for_clients(error) from error
                self._preferred += 1
                await search.go_on(error, addresses=len(self._pulses))
            else:
                return
            finally:
                if call is not None:
                    call.cancel()

    def watch_routes(
        self, *, on_connection: Callable[[bool], None] = lambda _connected: None
    ) -> AsyncIterator[scheduler_pb2.RouteTable]:
        """Iterate over routing tables, a new one after every change; reconnect as often as needed.

        `on_connection` gets True with the first table of each stream, and False when that stream ends.
        """
        return watch(self._routes, on_lost=self._lose_routes, on_connection=on_connection)

    async def _routes(self) -> AsyncGenerator[scheduler_pb2.RouteTable, None]:
        details = KeptDetails()  # of this stream
        stub, _ = await self._stub()
        call = stub.WatchRoutes(scheduler_pb2.WatchRoutesRequest(), metadata=call_metadata())
        try:
            async for table in received(call):
                details.take(route.model for route in table.routes)
                for route in table.routes:
                    details.complete(route.model)
                yield table
        finally:
            call.cancel()

    def _lose_routes(self, error: PunaError | None, _failures: int) -> None:
        if error is not None:
            log.info("routes.stream_lost", reason=error.reason, text=error.message)
            self._preferred += 1

    async def unload_model(self, name: str) -> int:
        """Stop the replicas of a model once they are idle, and return their number.

        Raises:
            ModelNotFound: there is no such model.
        """
        request = scheduler_pb2.UnloadModelRequest(model_name=name)
        return (await self._ask(lambda stub: stub.UnloadModel, request)).replicas

    async def list_constraints(self, name: str = "") -> list[scheduler_pb2.ModelConstraints]:
        """List the operators' constraints of one model, or of all that have any."""
        request = scheduler_pb2.ListConstraintsRequest(model_name=name)
        return list((await self._ask(lambda stub: stub.ListConstraints, request)).models)

    async def put_constraints(self, model: scheduler_pb2.ModelConstraints) -> scheduler_pb2.ModelConstraints:
        """Set what is wanted of a model.

        Raises:
            InvalidRequest: a constraint that contradicts another one, matches nothing, or is set in the file.
        """
        return await self._ask(lambda stub: stub.PutConstraints, scheduler_pb2.PutConstraintsRequest(model=model))

    async def remove_constraints(self, name: str) -> bool:
        """Forget what is wanted of a model; whether something was set. Raises InvalidRequest as `put_constraints`."""
        request = scheduler_pb2.RemoveConstraintsRequest(model_name=name)
        return (await self._ask(lambda stub: stub.RemoveConstraints, request)).was_set

    async def explain(self, request: scheduler_pb2.ExplainRequest) -> scheduler_pb2.Explanation:
        """Explain the placement of a model, existing or planned.

        Raises:
            ModelNotFound, BadModelFile, InvalidRequest: there is nothing to explain.
        """
        return await self._ask(lambda stub: stub.Explain, request, timeout_s=CALL_TIMEOUT_S + request.wait_ms / 1000)

    async def clear_device(self, device: str) -> scheduler_pb2.ClearDeviceResponse:
        """Have an excluded device tested again; the device as it is then.

        Raises:
            DeviceNotFound: no node has it.
            InvalidRequest: several nodes have one of this name.
            ModelUnavailable: its host does not answer, too.
        """
        request = scheduler_pb2.ClearDeviceRequest(device=device)
        return await self._ask(lambda stub: stub.ClearDevice, request, timeout_s=CLEAR_TIMEOUT_S)

    async def drain(self, node_id: str, *, budget_s: float | None = None) -> int:
        """Take a node out of use; how many replicas are still there.

        Raises:
            InvalidRequest: no node has this id.
        """
        budget_ms = None if budget_s is None else round(budget_s * 1000)
        request = scheduler_pb2.DrainRequest(node_id=node_id, budget_ms=budget_ms)
        return (await self._ask(lambda stub: stub.Drain, request)).replicas

    async def undrain(self, node_id: str) -> None:
        """Put a node into use again; raises as `drain`."""
        await self._ask(lambda stub: stub.Undrain, scheduler_pb2.UndrainRequest(node_id=node_id))

    async def remove_node(self, node_id: str, *, may_be_absent: bool) -> int:
        """Refuse the certificates that a node has now; how many replicas it had.

        Raises:
            NodeNotFound: no node of this id is registered, and it may not be absent.
            InvalidRequest: the node shows no certificate.
        """
        request = scheduler_pb2.RemoveNodeRequest(node_id=node_id, may_be_absent=may_be_absent)
        return (await self._ask(lambda stub: stub.RemoveNode, request)).replicas

    async def put_alias(self, name: str, target: str) -> scheduler_pb2.Alias:
        """Give a model a second name.

        Raises:
            InvalidRequest: it would not lead to a model.
            ModelNotFound: no node has the model.
        """
        request = scheduler_pb2.PutAliasRequest(alias=scheduler_pb2.Alias(name=name, target=target))
        return await self._ask(lambda stub: stub.PutAlias, request)

    async def remove_alias(self, name: str) -> bool:
        """Forget a second name; whether there was one."""
        return (await self._ask(lambda stub: stub.RemoveAlias, scheduler_pb2.RemoveAliasRequest(name=name))).was_set

    async def report_queues(self, request: scheduler_pb2.ReportQueuesRequest) -> None:
        """Report the waits of requests here to every scheduler: the leader needs them, and the leader may change.

        Raises:
            ModelUnavailable: none of them is there.
        """
        stubs = [scheduler_pb2_grpc.SchedulerStub(channel) for channel in await self._channels.get()]
        calls = [stub.ReportQueues(request, timeout=CALL_TIMEOUT_S, metadata=call_metadata()) for stub in stubs]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        if all(isinstance(outcome, BaseException) for outcome in outcomes):
            raise ModelUnavailable("no scheduler takes reports about queues")

    async def list_nodes(self) -> discovery_pb2.Inventory:
        """Return the inventory as a scheduler sees it."""
        return await self._ask(lambda stub: stub.ListNodes, scheduler_pb2.ListNodesRequest())

    async def _ask(
        self,
        method: "Callable[[Stub], aio.UnaryUnaryMultiCallable[Request, Response]]",
        request: Request,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Response:
        """Make one call. Where a scheduler is away, or refuses because it does not lead, the next address is tried."""
        search = LeaderSearch(self._leader_wait_s)
        while True:
            try:
                stub, pulse = await self._stub()
                return await self._while_alive(ask(method(stub), request, timeout_s=timeout_s), pulse)
            except ELSEWHERE as error:
                self._preferred += 1
                await search.go_on(error, addresses=len(self._pulses))

    async def _while_alive(self, work: Awaitable[Response], pulse: Pulse) -> Response:
        """Wait for a scheduler as long as its event loop runs.

        Raises:
            ModelUnavailable: it is silent.
        """
        task, silence = asyncio.ensure_future(work), asyncio.ensure_future(pulse.silence())
        try:
            await asyncio.wait({task, silence}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ModelUnavailable(_SILENT)
            return task.result()
        finally:
            task.cancel()
            silence.cancel()

    async def _stub(self) -> "tuple[Stub, Pulse]":
        """Return the stub and the pulse of the present address.

        Raises:
            ModelUnavailable: it is known to be silent; nothing was sent.
        """
        channels = await self._channels.get()
        for gone in self._pulses.keys() - set(channels):
            self._pulses.pop(gone).stop()
        for channel in channels:
            if channel not in self._pulses:
                self._pulses[channel] = Pulse(channel)
        chosen = channels[self._preferred % len(channels)]
        if self._pulses[chosen].is_silent:
            raise ModelUnavailable(_SILENT)
        return scheduler_pb2_grpc.SchedulerStub(chosen), self._pulses[chosen]
