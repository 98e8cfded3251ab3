"""Keys on gRPC: the same rules as over HTTP, in an interceptor."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc import aio

from common.closing import closing
from common.errors import InvalidRequest
from common.grpc.server import REQUEST_ID_KEY
from common.network import peer_address
from gateway.core.keys.keys import Scope
from gateway.keys.authorizer import Authorizer

if TYPE_CHECKING:  # generic in the stubs only
    Handler = grpc.RpcMethodHandler[Any, Any]

# Every method of puna.v1.Inference, and what it needs. One that is not here is refused.
SCOPES = {
    "Chat": Scope.INFER,
    "Generate": Scope.INFER,
    "Embed": Scope.EMBED,
    "Rerank": Scope.EMBED,
    "Tokenize": Scope.MODELS_READ,
    "Detokenize": Scope.MODELS_READ,
    "CountTokens": Scope.MODELS_READ,
    "ListModels": Scope.MODELS_READ,
    "ShowModel": Scope.MODELS_READ,
    "LoadModel": Scope.MODELS_WRITE,
    "UnloadModel": Scope.MODELS_WRITE,
    "PullModel": Scope.MODELS_WRITE,
}
# Health and reflection hold nothing of a tenant.
_OPEN_PREFIX = "/grpc."


class KeyInterceptor(aio.ServerInterceptor):
    """Runs inside of the one that translates errors."""

    def __init__(self, authorizer: Authorizer) -> None:
        """Use one authorizer for both listeners: a key has one quota."""
        self._authorizer = authorizer

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Ask for a key before the handler begins."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(_OPEN_PREFIX):
            return handler
        # A method without an entry needs the scope that opens most: denied to all but operators.
        scope = SCOPES.get(method.rpartition("/")[2], Scope.ADMIN_CLUSTER)
        streams = bool(handler.response_streaming)
        make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
        guard = (
            self._guard_stream(handler.unary_stream, scope, method)
            if streams
            else self._guard_unary(handler.unary_unary, scope, method)
        )
        guarded: Handler = make(
            guard,
            request_deserializer=_forgiving(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )
        return guarded

    def _guard_unary(self, behaviour: Any, scope: Scope, method: str) -> Any:
        async def guarded(request: Any, context: Any) -> Any:
            asks = await _asked(context)
            async with self._authorizer.visit(scope, **asks, act=method, named=_named_in(request)):
                return await behaviour(_read(request), context)

        return guarded

    def _guard_stream(self, behaviour: Any, scope: Scope, method: str) -> Any:
        async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
            asks = await _asked(context)
            async with (
                self._authorizer.visit(scope, **asks, act=method, named=_named_in(request)),
                closing(behaviour(_read(request), context)) as messages,
            ):
                async for message in messages:
                    yield message

        return guarded


class _Unreadable:
    """In the place of a message whose bytes are none."""


def _forgiving(read: Any) -> Any:
    """Wrap a deserializer so that we answer its failure: gRPC's own answer, UNKNOWN, reads like a bug of the server."""

    def forgiving(message: bytes) -> Any:
        try:
            return read(message)
        except DecodeError:
            return _Unreadable()

    return forgiving


def _read(request: Any) -> Any:
    if isinstance(request, _Unreadable):
        raise InvalidRequest("the message cannot be read")
    return request


def _named_in(request: Any) -> str:
    """Return the model that a request names."""
    return str(getattr(request, "model", "") or getattr(request, "model_name", ""))


async def _asked(context: Any) -> dict[str, Any]:
    """Tell the caller the id of its call, and return who asks."""
    request_id = str(structlog.contextvars.get_contextvars()["request_id"])
    await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))
    metadata = [(key, value) for key, value in context.invocation_metadata() or () if isinstance(value, str)]
    return {
        "authorizations": [value for key, value in metadata if key == "authorization"],
        "api_keys": [value for key, value in metadata if key == "x-api-key"],
        "address": peer_address(context.peer()),
        "request_id": request_id,
    }
