"""The part of puna.v1.Inference that is about models themselves."""

from collections.abc import AsyncIterator
from typing import Any

from grpc import aio

from common.errors import InvalidRequest
from gateway.answers.model_access import check_visible
from gateway.answers.record import RequestRecord
from gateway.core.models.creation import new_name
from gateway.core.request.answers import Dialect
from gateway.grpc.recorded import recorded
from gateway.grpc.vector_servicer import VectorServicer
from protos import inference_pb2, scheduler_pb2, store_pb2

Context = aio.ServicerContext[Any, Any]


class ModelServicer(VectorServicer):
    """Service for models and their changes."""

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        """List every model, newest first."""
        models = self._service.inference.models
        return inference_pb2.ListModelsResponse(
            models=[models.routes.proto_of(route) for route in models.visible()],
            aliases=[
                scheduler_pb2.Alias(name=one.name, target=one.alias_of) for one in models.listed() if one.alias_of
            ],
        )

    async def ShowModel(self, request: inference_pb2.ShowModelRequest, context: Context) -> scheduler_pb2.ModelRoute:
        """Show one model."""
        route = self._service.inference.models.known_route(checked_model(request.model))
        return self._service.inference.models.routes.proto_of(route)

    async def UnloadModel(
        self, request: scheduler_pb2.UnloadModelRequest, context: Context
    ) -> scheduler_pb2.UnloadModelResponse:
        """Stop a model's replicas once they are idle."""
        route = self._service.inference.models.known_route(checked_model(request.model_name))
        return scheduler_pb2.UnloadModelResponse(replicas=await self._service.unload(route.model.name))

    async def PullModel(
        self, request: inference_pb2.PullModelRequest, context: Context
    ) -> AsyncIterator[store_pb2.StoreProgress]:
        """Fetch a model from its registry; ends when it can be used."""
        name = new_name(request.model)
        check_visible(name)
        record = RequestRecord(dialect=Dialect.GRPC, route="PullModel", method="grpc", stream=True)
        async with self._service.work_feed(self._service.stores.pull(name, insecure=request.insecure), record) as feed:
            async for step in recorded(aiter(feed), record):
                yield step


def checked_model(model: str) -> str:
    """Return the name that a request gives.

    Raises:
        InvalidRequest: it gives none.
    """
    if not model:
        raise InvalidRequest("model is required", param="model")
    return model
