"""The outermost layer of HTTP: ids, Host and CORS rules, routing, errors in the caller's dialect, the end of a call."""

import asyncio
from dataclasses import dataclass

import structlog
from starlette.types import Receive, Scope, Send

from common.errors import (
    HeadersTooLarge,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    PunaError,
    RequestCanceled,
    exhaustion,
)
from common.ids import new_request_id
from common.telemetry import tracing
from common.telemetry.logs import get_logger
from gateway.answers.record import OTHER, RequestRecord
from gateway.core.dispatch.browser import BrowserPolicy
from gateway.core.request.answers import Dialect
from gateway.http.endpoint.errors import error_answer
from gateway.http.endpoint.exchange import Endpoint, Exchange
from gateway.http.endpoint.router import Router, dialect_of
from gateway.http.server.connections import CLIENT, HEADER_BYTES_MAX, ClientConnection
from gateway.http.server.refusals import Refusals
from gateway.keys.authorizer import Authorizer
from gateway.keys.visits import sender

log = get_logger()

CLIENT_GONE_STATUS = "499"
HEADERS_MAX = 64
URL_BYTES_MAX = 4 * 1024
RESUME_HEADER = b"x-puna-resume"
_CLIENT_ID_LENGTH_MAX = 128
_CORS_MAX_AGE_S = "43200"


@dataclass(slots=True, kw_only=True)
class Edge:
    """The ASGI application."""

    router: Router
    policy: BrowserPolicy
    authorizer: Authorizer
    refusals: Refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        record = RequestRecord(dialect=dialect_of(path), route=OTHER, method=scope["method"])
        record.may_resume = may_resume(scope["headers"])
        record.work = scope["extensions"][CLIENT].work
        exchange = Exchange(scope=scope, receive=receive, send=send, record=record, request_id=new_request_id())
        with structlog.contextvars.bound_contextvars(request_id=exchange.request_id):
            try:
                self._set_common_headers(exchange)
                status = await self._serve(exchange)
                record.finish(status)
            finally:
                record.prepared()

    async def _serve(self, exchange: Exchange) -> str:
        """Answer; returns the status for log and metrics."""
        try:
            # Closed after a refusal: where the next request begins is not certain any more.
            exchange.headers_out["connection"] = "close"
            check_framing(exchange)
            del exchange.headers_out["connection"]
            self._check_browser(exchange)
            if exchange.scope["method"] == "OPTIONS" and "origin" in exchange.headers:
                await self._preflight(exchange)
            else:
                await self._route(exchange)
        except RequestCanceled:
            return CLIENT_GONE_STATUS
        except PunaError as error:
            await self._answer_error(exchange, error)
        except Exception as error:  # the edge: bugs become 500 here
            if (refusal := exhaustion(error)) is not None:
                log.error("process.exhausted", route=exchange.record.route, text=str(error))
            else:
                log.exception("http.bug", route=exchange.record.route)
            await self._answer_error(exchange, refusal or InternalError("internal error"))
        return str(exchange.status or CLIENT_GONE_STATUS)

    async def _route(self, exchange: Exchange) -> None:
        route, exchange.path_value = self.router.match(exchange.scope["method"], exchange.scope["path"])
        exchange.record.route = route.path
        exchange.record.quiet = route.quiet
        exchange.record.is_limited = route.is_limited
        if not route.quiet:
            tracing.use_caller(exchange.headers.items())
            exchange.record.begin_trace()
            exchange.record.span.set({"puna.request_id": exchange.request_id})
        # Before the body is read: a caller without the right is refused early.
        async with self.authorizer.visit(
            route.scope,
            authorizations=exchange.headers.getlist("authorization"),
            api_keys=exchange.headers.getlist("x-api-key"),
            address=(exchange.scope.get("client") or ("", 0))[0],
            request_id=exchange.request_id,
            act=f"{route.method} {route.path}",
            named=exchange.path_value,
            needs_key=route.needs_key,
        ):
            if exchange.record.work is not None:
                exchange.record.work.assign(sender())
            try:
                reads_body = route.body is not None or route.takes_file
                await _until_disconnect(route.endpoint, exchange, reads_body=reads_body)
            finally:
                exchange.record.settle()

    async def _answer_error(self, exchange: Exchange, error: PunaError) -> None:
        exchange.record.error = error.reason
        if exchange.status is not None:
            # The endpoint failed after its status line without saying so in its stream: only closing is honest.
            raise error
        answer = error_answer(error, exchange.dialect, exchange.request_id)
        headers = dict(answer.headers)
        if isinstance(error, MethodNotAllowed):
            headers["allow"] = ", ".join(self.router.allowed(exchange.scope["path"]))
        try:
            if exchange.scope["method"] in ("POST", "PUT", "PATCH", "DELETE"):
                await exchange.discard_body()
                if not exchange.body_read:
                    headers["connection"] = "close"
            await exchange.respond(answer.status, answer.body, headers)
        except RequestCanceled:
            log.debug("http.error_unread", reason=error.reason)

    def _set_common_headers(self, exchange: Exchange) -> None:
        exchange.headers_out["x-request-id"] = exchange.request_id
        if exchange.dialect is Dialect.ANTHROPIC:
            exchange.headers_out["request-id"] = exchange.request_id
        theirs = exchange.headers.get("x-request-id", "")
        if theirs and theirs.isascii() and theirs.isprintable() and len(theirs) <= _CLIENT_ID_LENGTH_MAX:
            exchange.headers_out["x-client-request-id"] = theirs
            exchange.record.client_request_id = theirs

    def _check_browser(self, exchange: Exchange) -> None:
        headers, policy = exchange.headers, self.policy
        policy.check_host(headers.getlist("host"))
        origin = headers.get("origin")
        site, destination = headers.get("sec-fetch-site", ""), headers.get("sec-fetch-dest", "")
        policy.check_page(origin, headers.get("host", ""), site=site, destination=destination)
        if origin is None:
            return
        exchange.headers_out |= {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": "x-request-id, x-client-request-id, x-puna-ignored, retry-after",
            "vary": "Origin",
        }

    async def _preflight(self, exchange: Exchange) -> None:
        exchange.record.route = "preflight"
        requested = exchange.headers.get("access-control-request-headers", "")
        headers = {
            "access-control-allow-methods": ", ".join(self.router.allowed(exchange.scope["path"])) or "GET",
            "access-control-max-age": _CORS_MAX_AGE_S,
        }
        if requested and requested.isascii() and requested.isprintable():
            headers["access-control-allow-headers"] = requested
        await exchange.respond(204, b"", headers)


def check_framing(exchange: Exchange) -> None:
    """Refuse what could mean two things to two parsers, and heads that are larger than any client's.

    Raises:
        InvalidRequest, HeadersTooLarge: tell the client; the connection is closed after a request with a body.
    """
    raw: list[tuple[bytes, bytes]] = exchange.scope["headers"]
    if len(raw) > HEADERS_MAX or sum(len(name) + len(value) for name, value in raw) > HEADER_BYTES_MAX:
        raise HeadersTooLarge(f"request headers exceed {HEADERS_MAX} lines or {HEADER_BYTES_MAX} bytes")
    if len(exchange.scope["raw_path"]) + len(exchange.scope["query_string"]) > URL_BYTES_MAX:
        raise InvalidRequest(f"the URL exceeds {URL_BYTES_MAX} bytes")
    if "transfer-encoding" in exchange.headers and "content-length" in exchange.headers:
        raise InvalidRequest("Content-Length and Transfer-Encoding exclude each other")


def may_resume(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return False if the client wants an error, not the rest from another replica, when its own is lost."""
    return (RESUME_HEADER, b"0") not in headers


async def _until_disconnect(endpoint: Endpoint, exchange: Exchange, *, reads_body: bool) -> None:
    """Run an endpoint; when the client leaves, cancel it at once and wait until it has let go of everything.

    Raises:
        RequestCanceled: the client left.
    """
    client: ClientConnection = exchange.scope["extensions"][CLIENT]
    task = asyncio.current_task()
    assert task is not None
    is_cancelled = False

    def leave() -> None:
        nonlocal is_cancelled
        # An endpoint that still reads a body gets the error there.
        if not is_cancelled and not (reads_body and client.is_sending):
            is_cancelled = True
            task.cancel()

    if client.has_left:
        raise RequestCanceled("request canceled")
    client.on_leave = leave
    try:
        await endpoint(exchange)
    except BaseException as error:
        # As asyncio.timeout does it: our own cancellation is taken back, any other is passed on.
        if not is_cancelled or (task.uncancel() > 0 and isinstance(error, asyncio.CancelledError)):
            raise
        raise RequestCanceled("request canceled") from None
    finally:
        client.on_leave = None
