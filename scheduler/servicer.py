"""puna.v1.Scheduler over gRPC. Reads are answered by every scheduler, commands only by the leader."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from grpc import aio

from common.errors import InvalidRequest
from common.telemetry import tracing
from protos import discovery_pb2, scheduler_pb2, scheduler_pb2_grpc
from scheduler import metrics
from scheduler.callers import Callers
from scheduler.constraint_converters import from_explanation, from_model_constraints, to_constraints
from scheduler.converters import ALIASES, EXPLAIN_REQUESTS, LOAD_REQUESTS
from scheduler.core.state.effects import (
    AnswerAlias,
    AnswerConstraints,
    AnswerExplained,
    AnswerReplicas,
)
from scheduler.core.state.events import (
    AliasPut,
    CallerLeft,
    ConstraintsAsked,
    ConstraintsPut,
    CrashesBlamed,
    DeviceClearAsked,
    DrainAsked,
    Event,
    QueuesReported,
    UnloadRequested,
)
from scheduler.core.values.constraints import Constraints
from scheduler.loop import CoreLoop
from scheduler.removals import Removals
from scheduler.routes import RouteBoard

Context = aio.ServicerContext[Any, Any]

MODEL_NAME_LENGTH_MAX = 512
QUEUES_MAX = 4096
EXPLAIN_WAIT_S_MAX = 30.0


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServicer):
    """Requests in, answers of the core out."""

    def __init__(self, loop: CoreLoop, callers: Callers, board: RouteBoard, removals: Removals) -> None:
        self._loop = loop
        self._removals = removals
        self._callers = callers
        self._board = board

    async def EnsureModel(
        self, request: scheduler_pb2.EnsureModelRequest, context: Context
    ) -> AsyncIterator[scheduler_pb2.EnsureModelEvent]:
        """Wait for a replica; leaving changes nothing for the others."""
        name = _checked_name(request.model_name)
        with (
            tracing.begin("ensure", kind=tracing.SpanKind.SERVER) as span,
            self._callers.waiting_for_load() as caller,
        ):
            event = LOAD_REQUESTS.from_proto(request, caller_id=caller.id, model_name=name)
            await self._loop.post(event)
            try:
                async for progress in caller.news():
                    yield progress
                route: scheduler_pb2.ModelRoute = await caller.outcome
                span.set({"gen_ai.request.model": route.model.name})  # not before it is known to exist
            finally:
                if not caller.outcome.done() or caller.outcome.cancelled():
                    self._loop.post_soon(CallerLeft(caller_id=caller.id))
            yield scheduler_pb2.EnsureModelEvent(ready=scheduler_pb2.Ready(route=route))

    async def WatchRoutes(
        self, request: scheduler_pb2.WatchRoutesRequest, context: Context
    ) -> AsyncIterator[scheduler_pb2.RouteTable]:
        """Yield the newest table now and after every change."""
        metrics.ROUTE_WATCHERS.inc()
        try:
            async for table in self._board.watch():
                yield table
        finally:
            metrics.ROUTE_WATCHERS.dec()

    async def UnloadModel(
        self, request: scheduler_pb2.UnloadModelRequest, context: Context
    ) -> scheduler_pb2.UnloadModelResponse:
        """Order every replica of a model to go."""
        name = _checked_name(request.model_name)
        answer: AnswerReplicas = await self._ask(
            lambda caller_id: UnloadRequested(caller_id=caller_id, model_name=name)
        )
        return scheduler_pb2.UnloadModelResponse(replicas=answer.replicas)

    async def ListNodes(self, request: scheduler_pb2.ListNodesRequest, context: Context) -> discovery_pb2.Inventory:
        """Return the inventory that decisions are made on."""
        return self._board.inventory()

    async def ListConstraints(
        self, request: scheduler_pb2.ListConstraintsRequest, context: Context
    ) -> scheduler_pb2.ListConstraintsResponse:
        """List the constraints that operators have set."""
        name = _checked_name(request.model_name) if request.model_name else ""
        answer: AnswerConstraints = await self._ask(
            lambda caller_id: ConstraintsAsked(caller_id=caller_id, model_name=name)
        )
        return scheduler_pb2.ListConstraintsResponse(models=[from_model_constraints(model) for model in answer.models])

    async def PutConstraints(
        self, request: scheduler_pb2.PutConstraintsRequest, context: Context
    ) -> scheduler_pb2.ModelConstraints:
        """Set what is wanted of a model; answered once it is written down."""
        name = _checked_name(request.model.model_name)
        answer = await self._put_constraints(name, to_constraints(request.model.constraints))
        return from_model_constraints(answer.models[0])

    async def RemoveConstraints(
        self, request: scheduler_pb2.RemoveConstraintsRequest, context: Context
    ) -> scheduler_pb2.RemoveConstraintsResponse:
        """Forget what was set."""
        answer = await self._put_constraints(_checked_name(request.model_name), None)
        return scheduler_pb2.RemoveConstraintsResponse(was_set=answer.was_set)

    async def _put_constraints(self, name: str, constraints: Constraints | None) -> AnswerConstraints:
        answer: AnswerConstraints = await self._ask(
            lambda caller_id: ConstraintsPut(caller_id=caller_id, model_name=name, constraints=constraints)
        )
        return answer

    async def Explain(self, request: scheduler_pb2.ExplainRequest, context: Context) -> scheduler_pb2.Explanation:
        """Explain the placement of a model, or the one that it would get."""
        name = _checked_name(request.model_name)
        with self._callers.waiting() as caller:
            wait_s = min(request.wait_ms / 1000, EXPLAIN_WAIT_S_MAX)
            event = EXPLAIN_REQUESTS.from_proto(request, caller_id=caller.id, model_name=name, wait_s=wait_s)
            await self._loop.post(event)
            try:
                answer: AnswerExplained = await caller.outcome
                explanation = answer.explanation
                return from_explanation(explanation, [self._board.crash_row(row) for row in explanation.crash_rows])
            finally:
                if not caller.outcome.done() or caller.outcome.cancelled():
                    self._loop.post_soon(CallerLeft(caller_id=caller.id))

    async def ClearDevice(
        self, request: scheduler_pb2.ClearDeviceRequest, context: Context
    ) -> scheduler_pb2.ClearDeviceResponse:
        """Give an excluded device another chance."""
        if not request.device:
            raise InvalidRequest("device is required", param="device")
        response: scheduler_pb2.ClearDeviceResponse = await self._ask(
            lambda caller_id: DeviceClearAsked(caller_id=caller_id, label=request.device)
        )
        return response

    async def Drain(self, request: scheduler_pb2.DrainRequest, context: Context) -> scheduler_pb2.DrainResponse:
        """Take a node out of use."""
        budget_s = request.budget_ms / 1000 if request.HasField("budget_ms") else None
        return scheduler_pb2.DrainResponse(replicas=await self._drain(request.node_id, drain=True, budget_s=budget_s))

    async def Undrain(self, request: scheduler_pb2.UndrainRequest, context: Context) -> scheduler_pb2.UndrainResponse:
        """Put it into use again."""
        await self._drain(request.node_id, drain=False)
        return scheduler_pb2.UndrainResponse()

    async def RemoveNode(
        self, request: scheduler_pb2.RemoveNodeRequest, context: Context
    ) -> scheduler_pb2.RemoveNodeResponse:
        """Take a node out of the cluster."""
        replicas = await self._removals.remove(request.node_id, may_be_absent=request.may_be_absent)
        return scheduler_pb2.RemoveNodeResponse(replicas=replicas)

    async def _drain(self, node_id: str, *, drain: bool, budget_s: float | None = None) -> int:
        if not node_id:
            raise InvalidRequest("node_id is required", param="node_id")
        answer: AnswerReplicas = await self._ask(
            lambda caller_id: DrainAsked(caller_id=caller_id, node_id=node_id, drain=drain, budget_s=budget_s)
        )
        return answer.replicas

    async def PutAlias(self, request: scheduler_pb2.PutAliasRequest, context: Context) -> scheduler_pb2.Alias:
        """Give a model a second name; answered once it is written down."""
        name, target = _checked_name(request.alias.name), _checked_name(request.alias.target)
        alias = (await self._put_alias(name, target)).alias
        assert alias is not None  # what was put is there
        return ALIASES.to_proto(alias)

    async def RemoveAlias(
        self, request: scheduler_pb2.RemoveAliasRequest, context: Context
    ) -> scheduler_pb2.RemoveAliasResponse:
        """Forget a second name; the model stays."""
        answer = await self._put_alias(_checked_name(request.name), None)
        return scheduler_pb2.RemoveAliasResponse(was_set=answer.was_set)

    async def _put_alias(self, name: str, target: str | None) -> AnswerAlias:
        answer: AnswerAlias = await self._ask(lambda caller_id: AliasPut(caller_id=caller_id, name=name, target=target))
        return answer

    async def ReportQueues(
        self, request: scheduler_pb2.ReportQueuesRequest, context: Context
    ) -> scheduler_pb2.ReportQueuesResponse:
        """Take in the waits of requests at a gateway, and the replicas that requests have ended."""
        if not request.gateway_id or max(len(request.queues), len(request.poison)) > QUEUES_MAX:
            raise InvalidRequest(f"gateway_id and at most {QUEUES_MAX} queues are required", param="gateway_id")
        for poison in request.poison:
            lives = tuple((one.placement_id, one.generation) for one in poison.replicas)
            await self._loop.post(CrashesBlamed(request=poison.name.hex(), lives=lives))
        waits_s = {queue.model_name: queue.oldest_wait_ms / 1000 for queue in request.queues if queue.waiting}
        await self._loop.post(QueuesReported(gateway_id=request.gateway_id, waits_s=waits_s))
        return scheduler_pb2.ReportQueuesResponse()

    async def _ask(self, event: Callable[[str], Event]) -> Any:
        """Put a question to the core, made for the id of its caller, and wait for the answer."""
        with self._callers.waiting() as caller:
            await self._loop.post(event(caller.id))
            return await caller.outcome


def _checked_name(name: str) -> str:
    if not name:
        raise InvalidRequest("model is required", param="model_name")
    if len(name) > MODEL_NAME_LENGTH_MAX:
        raise InvalidRequest(f"model must have at most {MODEL_NAME_LENGTH_MAX} characters", param="model_name")
    return name
