"""Client of the scheduler for gateways and the command line: any of several addresses, domain errors only."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

from google.protobuf.message import Message

from common.errors import ModelUnavailable, PunaError
from common.grpc.addresses import Channels
from common.grpc.client import call_metadata
from common.grpc.errors import domain_errors, received
from common.grpc.watch import watch
from common.model_details import KeptDetails
from common.telemetry.logs import get_logger
from protos import discovery_pb2, scheduler_pb2, scheduler_pb2_grpc

log = get_logger()

CALL_TIMEOUT_S = 5.0
# A test of a device has 30 s, and may wait for the one before it.
CLEAR_TIMEOUT_S = 70.0


class SchedulerClient:
    """Commands go to the scheduler that leads: the others refuse, and then the next address is tried."""

    def __init__(self, addresses: str, *, on_routes: Callable[[bool], None] = lambda _connected: None) -> None:
        """`addresses`: one, or several with commas between them; a name may stand for several, too.

        Channels connect when first used.
        `on_routes` hears True with the first table of each stream of `watch_routes`, and False when it ends.
        """
        self._on_routes = on_routes
        self._channels = Channels(addresses)
        self._preferred = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; running calls end."""
        await self._channels.close()

    async def ensure_model(
        self, request: scheduler_pb2.EnsureModelRequest
    ) -> AsyncIterator[scheduler_pb2.EnsureModelEvent]:
        """Have a replica of a model; the last event is `ready`. Leaving the iteration aborts no load.

        Raises:
            ModelNotFound, BadModelFile, InsufficientMemory: it will not work.
            ModelUnavailable, QueueFull: not now; try again after `retry_after_s`.
        """
        for attempt in itertools.count():
            stub, others = await self._stub()
            call = stub.EnsureModel(request, metadata=call_metadata())
            heard = False
            try:
                async for event in received(call):
                    heard = True
                    yield event
            except ModelUnavailable:
                if heard or not self._try_next(attempt, others):
                    raise
            else:
                return
            finally:
                call.cancel()

    def watch_routes(self) -> AsyncIterator[scheduler_pb2.RouteTable]:
        """Iterate over routing tables, a new one after every change; reconnect as often as needed."""
        return watch(self._routes, on_lost=self._lose_routes, on_connection=self._on_routes)

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
            ModelUnavailable: no scheduler leads now.
        """
        request = scheduler_pb2.UnloadModelRequest(model_name=name)
        response: scheduler_pb2.UnloadModelResponse = await self._ask_leader("UnloadModel", request)
        return response.replicas

    async def list_constraints(self, name: str = "") -> list[scheduler_pb2.ModelConstraints]:
        """List the operators' constraints of one model, or of all that have any."""
        request = scheduler_pb2.ListConstraintsRequest(model_name=name)
        response: scheduler_pb2.ListConstraintsResponse = await self._ask_leader("ListConstraints", request)
        return list(response.models)

    async def put_constraints(self, model: scheduler_pb2.ModelConstraints) -> scheduler_pb2.ModelConstraints:
        """Set what is wanted of a model.

        Raises:
            InvalidRequest: a constraint that contradicts another one, matches nothing, or is set in the file.
            ModelUnavailable: no scheduler leads now, or it cannot be written down.
        """
        request = scheduler_pb2.PutConstraintsRequest(model=model)
        response: scheduler_pb2.ModelConstraints = await self._ask_leader("PutConstraints", request)
        return response

    async def remove_constraints(self, name: str) -> bool:
        """Forget what is wanted of a model; whether something was set. Raises as `put_constraints`."""
        request = scheduler_pb2.RemoveConstraintsRequest(model_name=name)
        response: scheduler_pb2.RemoveConstraintsResponse = await self._ask_leader("RemoveConstraints", request)
        return response.was_set

    async def explain(self, request: scheduler_pb2.ExplainRequest) -> scheduler_pb2.Explanation:
        """Explain the placement of a model, existing or planned.

        Raises:
            ModelNotFound, BadModelFile, InvalidRequest: there is nothing to explain.
            ModelUnavailable: no scheduler leads now.
        """
        timeout_s = CALL_TIMEOUT_S + request.wait_ms / 1000
        response: scheduler_pb2.Explanation = await self._ask_leader("Explain", request, timeout_s=timeout_s)
        return response

    async def clear_device(self, device: str) -> scheduler_pb2.ClearDeviceResponse:
        """Have an excluded device tested again; the device as it is then.

        Raises:
            DeviceNotFound: no node has it.
            InvalidRequest: several nodes have one of this name.
            ModelUnavailable: no scheduler leads now, or its host does not answer.
        """
        request = scheduler_pb2.ClearDeviceRequest(device=device)
        response: scheduler_pb2.ClearDeviceResponse = await self._ask_leader(
            "ClearDevice", request, timeout_s=CLEAR_TIMEOUT_S
        )
        return response

    async def drain(self, node_id: str, *, budget_s: float | None = None) -> int:
        """Take a node out of use; how many replicas are still there.

        Raises:
            InvalidRequest: no node has this id.
            ModelUnavailable: no scheduler leads now, or it cannot be written down.
        """
        budget_ms = None if budget_s is None else round(budget_s * 1000)
        request = scheduler_pb2.DrainRequest(node_id=node_id, budget_ms=budget_ms)
        response: scheduler_pb2.DrainResponse = await self._ask_leader("Drain", request)
        return response.replicas

    async def undrain(self, node_id: str) -> None:
        """Put a node into use again; raises as `drain`."""
        await self._ask_leader("Undrain", scheduler_pb2.UndrainRequest(node_id=node_id))

    async def put_alias(self, name: str, target: str) -> scheduler_pb2.Alias:
        """Give a model a second name.

        Raises:
            InvalidRequest: it would not lead to a model.
            ModelNotFound: no node has the model.
            ModelUnavailable: no scheduler leads now, or it cannot be written down.
        """
        request = scheduler_pb2.PutAliasRequest(alias=scheduler_pb2.Alias(name=name, target=target))
        response: scheduler_pb2.Alias = await self._ask_leader("PutAlias", request)
        return response

    async def remove_alias(self, name: str) -> bool:
        """Forget a second name; whether there was one. Raises ModelUnavailable as `put_alias`."""
        request = scheduler_pb2.RemoveAliasRequest(name=name)
        response: scheduler_pb2.RemoveAliasResponse = await self._ask_leader("RemoveAlias", request)
        return response.was_set

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

    async def _ask_leader(self, method: str, request: Message, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Make one call to the leader; the others refuse."""
        attempt = 0
        while True:
            stub, others = await self._stub()
            try:
                with domain_errors():
                    return await getattr(stub, method)(request, timeout=timeout_s, metadata=call_metadata())
            except ModelUnavailable:
                if not self._try_next(attempt, others):
                    raise
                attempt += 1

    async def list_nodes(self) -> discovery_pb2.Inventory:
        """Return the inventory as the scheduler sees it."""
        stub, _ = await self._stub()
        with domain_errors():
            inventory: discovery_pb2.Inventory = await stub.ListNodes(
                scheduler_pb2.ListNodesRequest(), timeout=CALL_TIMEOUT_S, metadata=call_metadata()
            )
        return inventory

    async def _stub(self) -> "tuple[scheduler_pb2_grpc.SchedulerAsyncStub, int]":
        """Return the stub of the present address, and the number of other addresses."""
        channels = await self._channels.get()
        return scheduler_pb2_grpc.SchedulerStub(channels[self._preferred % len(channels)]), len(channels) - 1

    def _try_next(self, attempt: int, others: int) -> bool:
        """Switch to the next address; False: all were tried."""
        self._preferred += 1
        return attempt < others
