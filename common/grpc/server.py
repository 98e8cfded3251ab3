"""Set-up of every gRPC server of Puna: identities, errors, request ids, health, reflection, keepalive."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from google.protobuf.message import Message
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from common.errors import InternalError, InvalidRequest, PunaError, RequestCanceled, StartupError, exhaustion
from common.grpc.errors import to_status
from common.grpc.ranges import find_out_of_range
from common.ids import new_request_id
from common.network import UNIX_PREFIX, is_private_listener, is_taken, split_host_port
from common.telemetry import tracing
from common.telemetry.logs import get_logger
from common.trust.callers import check_caller, server_credentials
from common.trust.identity import IdentitySource, own_identity
from common.trust.revocations import Revocations
from common.trust.roles import Role
from common.trust.sockets import private_umask, socket_fault

log = get_logger()

_check_again: ContextVar[Callable[[], object]] = ContextVar("check_again", default=lambda: None)

if TYPE_CHECKING:  # generic in the stubs only
    Handler = grpc.RpcMethodHandler[Any, Any]
    ServicerContext = aio.ServicerContext[Any, Any]
else:
    ServicerContext = aio.ServicerContext

REQUEST_ID_KEY = "x-request-id"
MESSAGE_BYTES_MAX = 32 * 1024 * 1024
# Both sides of a connection notice within 8 s that the other one is silent, also without calls. The timeout of the
# keepalive is that of TCP, and the kernel of a stopped process acknowledges; that of the ping is for its answer.
KEEPALIVE_OPTIONS: Mapping[str, int] = {
    "grpc.keepalive_time_ms": 5000,
    "grpc.keepalive_timeout_ms": 3000,
    "grpc.http2.ping_timeout_ms": 3000,
    "grpc.keepalive_permit_without_calls": 1,
}
SERVER_OPTIONS: Mapping[str, int] = {
    **KEEPALIVE_OPTIONS,
    "grpc.max_receive_message_length": MESSAGE_BYTES_MAX,
    "grpc.max_send_message_length": MESSAGE_BYTES_MAX,
    "grpc.max_concurrent_streams": 1024,
    # Less than between pings of clients: the default minimum of 5 min would answer them with too_many_pings.
    "grpc.http2.min_ping_interval_without_data_ms": 4000,
    "grpc.so_reuseport": 0,  # a second process on the same port must fail, not share it
}
# Clients may be far away: a bad network may be silent for a while.
CLIENT_OPTIONS: Mapping[str, int] = {
    "grpc.keepalive_time_ms": 15_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.http2.ping_timeout_ms": 10_000,
}
# A listener for callers that nothing is known of: few short calls.
STRANGER_OPTIONS: Mapping[str, int] = {
    "grpc.max_receive_message_length": 64 * 1024,
    "grpc.max_concurrent_streams": 4,
    "grpc.max_connection_age_ms": 30_000,
    "grpc.max_connection_age_grace_ms": 1000,
    "grpc.server_handshake_timeout_ms": 5000,
}
_STRANGERS_MAX = 64  # calls at once


class Audience(Enum):
    """Callers that a listener is for."""

    CLUSTER = auto()  # processes of the cluster
    CLIENTS = auto()  # clients, whose keys are checked call by call
    STRANGERS = auto()  # machines of which nothing is known: everything is limited


_AUDIENCE_OPTIONS: Mapping[Audience, Mapping[str, int]] = {
    Audience.CLUSTER: {},
    Audience.CLIENTS: CLIENT_OPTIONS,
    Audience.STRANGERS: STRANGER_OPTIONS,
}


@dataclass(slots=True, kw_only=True)
class GrpcServer:
    """A bound server and its health service."""

    server: aio.Server
    health: health.aio.HealthServicer
    address: str  # as others dial it; port 0 is resolved

    async def start(self) -> None:
        """Serve, and report SERVING."""
        await self.server.start()
        await self.set_serving(True)

    async def set_serving(self, serving: bool, *, service: str = "") -> None:
        """Set the health status of a service by its full name; without one the overall status."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        await self.health.set(service, status)

    async def stop(self, grace_s: float) -> None:
        """Report NOT_SERVING, take no new calls, give running ones `grace_s`."""
        await self.health.enter_graceful_shutdown()
        await self.server.stop(grace_s)


def bind_server(
    listen: str,
    *,
    register: Callable[[aio.Server], None],
    services: Iterable[str],
    plaintext: bool = False,
    interceptors: Iterable[aio.ServerInterceptor] = (),
    credentials: grpc.ServerCredentials | None = None,
    audience: Audience = Audience.CLUSTER,
    revocations: Revocations | None = None,
) -> GrpcServer:
    """Create a server on `host:port` or `unix:/path`. `register` adds the servicers, `services` are their full names.

    `interceptors` run within the one that translates errors. On TCP processes of the cluster must show certificates if
    this one has an identity, and have the role that each method asks for; for other callers, `credentials` None means
    no TLS. `revocations`: calls and streams of removed nodes are ended.

    Raises:
        StartupError: the address is taken or unusable, or other machines could reach it and `plaintext` is not set.
    """
    is_unix = listen.startswith(UNIX_PREFIX)
    identity = own_identity() if audience is Audience.CLUSTER and not is_unix else None
    if identity is not None:
        credentials = server_credentials(identity)
    elif audience is Audience.CLUSTER and not plaintext:
        check_consent(listen)
    if is_unix and (fault := socket_fault(listen)):
        raise StartupError(fault)
    server = aio.server(
        interceptors=[CallInterceptor(identity, revocations, audience), *interceptors],
        options=list({**SERVER_OPTIONS, **_AUDIENCE_OPTIONS[audience]}.items()),
        maximum_concurrent_rpcs=_STRANGERS_MAX if audience is Audience.STRANGERS else None,
    )
    register(server)
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection([*services, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    if not is_unix and is_taken(listen):
        raise StartupError(f"{listen} is already in use")
    try:
        with private_umask():
            port = server.add_secure_port(listen, credentials) if credentials else server.add_insecure_port(listen)
    except RuntimeError as error:
        raise StartupError(f"cannot listen on {listen}: {error}") from error
    address = listen if is_unix else f"{split_host_port(listen)[0]}:{port}"
    return GrpcServer(server=server, health=health_servicer, address=address)


def check_consent(listen: str) -> None:
    """Refuse a listener without TLS that other machines could reach.

    Raises:
        StartupError: they could.
    """
    if not is_private_listener(listen):
        raise StartupError(
            f"{listen} can be reached from other machines; set PUNA_TRUST to a directory with a certificate, or "
            "PUNA_PLAINTEXT=1 to allow that without TLS"
        )


class CallInterceptor(aio.ServerInterceptor):
    """Callers are checked, domain errors become statuses, bugs INTERNAL without their text; logs get the request id.

    A request with a number that is out of range is refused; streams of requests are checked by their servicers.
    """

    def __init__(
        self,
        identity: IdentitySource | None,
        revocations: Revocations | None = None,
        audience: Audience = Audience.CLUSTER,
    ) -> None:
        """Check no caller if `identity` is None: then the listener has no certificates.

        Request ids come from processes of the cluster only: one that a client chose could be another client's.
        """
        self._identity = identity
        self._revocations = revocations
        self._has_ids = audience is Audience.CLUSTER

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Wrap the handler of the call; unknown methods pass through as None."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = handler_call_details.method
        request_id = self._request_id(handler_call_details)
        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[(bool(handler.request_streaming), bool(handler.response_streaming))]
        if handler.response_streaming:
            behaviour: Any = self._guard_stream(handler.unary_stream or handler.stream_stream, method, request_id)
        else:
            behaviour = self._guard_unary(handler.unary_unary or handler.stream_unary, method, request_id)
        wrapped: Handler = make(
            behaviour,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
        return wrapped

    def _request_id(self, details: grpc.HandlerCallDetails) -> str:
        for key, value in (details.invocation_metadata or ()) if self._has_ids else ():
            if key == REQUEST_ID_KEY and isinstance(value, str):
                return value
        return new_request_id()

    def _guard_unary(self, behaviour: Any, method: str, request_id: str) -> Any:
        async def guarded(request: Any, context: ServicerContext) -> Any:
            with structlog.contextvars.bound_contextvars(request_id=request_id):
                tracing.use_caller(_headers(context))
                try:
                    check = self._check(context, method)
                    check_numbers(request)
                    return await behaviour(_checked(request, check), context)
                except Exception as error:  # noqa: BLE001  # the edge: bugs become INTERNAL here
                    await _abort(context, error, method)

        return guarded

    def _guard_stream(self, behaviour: Any, method: str, request_id: str) -> Any:
        async def guarded(request: Any, context: ServicerContext) -> AsyncIterator[Any]:
            with structlog.contextvars.bound_contextvars(request_id=request_id):
                tracing.use_caller(_headers(context))
                try:
                    check = self._check(context, method)
                    _check_again.set(partial(self._check, context, method))
                    check_numbers(request)
                    answers = behaviour(_checked(request, check), context)
                    if inspect.isawaitable(
                        answers
                    ):  # it calls context.write itself, as the health service's Watch does
                        await answers
                        return
                    async for message in answers:
                        if check is not None:
                            check()
                        yield message
                except Exception as error:  # noqa: BLE001  # the edge: bugs become INTERNAL here
                    await _abort(context, error, method)

        return guarded

    def _check(self, context: ServicerContext, method: str) -> Callable[[], None] | None:
        """Check the caller; return what is to be checked again with each message."""
        if self._identity is None:
            return None
        facts = check_caller(context, method, self._identity)
        if self._revocations is None or facts.name.role is not Role.NODE:
            return None
        self._revocations.check(facts)
        return partial(self._revocations.check, facts)


def check_caller_again() -> None:
    """Check the caller of the running call as at its start: for messages that stand for calls of their own.

    Raises:
        Unauthenticated: its certificate expired meanwhile.
    """
    _check_again.get()()


def _checked(request: Any, check: Callable[[], None] | None) -> Any:
    """Return a request, or a stream of requests with a check before each."""
    if check is None or not hasattr(request, "__aiter__"):
        return request

    async def messages() -> AsyncIterator[Any]:
        async for message in request:
            check()
            yield message

    return messages()


def _headers(context: ServicerContext) -> list[tuple[str, str]]:
    return [(key, value) for key, value in context.invocation_metadata() or () if isinstance(value, str)]


def check_numbers(request: Any) -> None:
    """Check the numbers of a single request, or of one message of a stream.

    Raises:
        InvalidRequest: one is out of range.
    """
    if isinstance(request, Message) and (found := find_out_of_range(request)) is not None:
        raise InvalidRequest(str(found), param=found.path.rpartition(".")[2])


def domain_error(error: Exception, method: str) -> PunaError:
    """Return what the caller gets for an error of a handler, and log it: bugs become INTERNAL without their text."""
    if (refusal := exhaustion(error)) is not None:
        log.error("process.exhausted", method=method, text=str(error))
        return refusal
    if not isinstance(error, PunaError):
        log.exception("grpc.bug", method=method)
        return InternalError("internal error")
    if not isinstance(error, RequestCanceled):
        log.info("grpc.refused", method=method, reason=error.reason, text=error.message)
    return error


async def _abort(context: ServicerContext, error: Exception, method: str) -> None:
    """End the call with the error's status. grpc.aio's own AbortError is an Exception too and passes."""
    if isinstance(error, aio.AbortError):
        raise error
    status = to_status(domain_error(error, method))
    context.set_trailing_metadata(status.trailing_metadata)
    await context.abort(status.code, status.details, status.trailing_metadata)
