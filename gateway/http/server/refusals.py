"""Refusals by a gateway with too much to do, from the head of a request.

Each has to cost next to nothing: what it costs is missing for the requests that are answered. A request of a program
gets its refusal without a task of its own; any other, or one with a long body, is refused later, by `Exchange`.
"""

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from common.errors import QueueFull
from common.ids import new_request_id
from gateway import metrics
from gateway.answers.record import OTHER
from gateway.core.dispatch.work_limit import OVERLOAD_TEXT, RETRY_AFTER_S_MAX, RETRY_AFTER_S_MIN, cost_of
from gateway.core.request.answers import Dialect
from gateway.http.endpoint.errors import error_answer
from gateway.http.endpoint.router import Router
from gateway.keys.authorizer import Authorizer
from gateway.pressure.work import WORK, work_s

# Of the body of a refused request, which is read and forgotten; a longer one is refused by `Exchange`.
UNREAD_BYTES_MAX = 1024 * 1024
_NO_ID = b"-" * len(new_request_id())


class Refusals:
    """Refuses requests for answers and vectors that do not fit into the work in progress."""

    def __init__(self, router: Router, authorizer: Authorizer) -> None:
        """Make the responses of all dialects."""
        self.dialects = {route.path: route.dialect for route in router.routes if route.is_limited}
        self._authorizer = authorizer
        self._responses = {
            (dialect, retry_s): _response(dialect, retry_s)
            for dialect in set(self.dialects.values())
            for retry_s in range(RETRY_AFTER_S_MIN, RETRY_AFTER_S_MAX + 1)
        }

    def refuse(self, target: bytes, headers: list[tuple[bytes, bytes]], address: str) -> bytes | None:
        """Return the refusal of a POST request on a connection that stays; None: it fits, or takes a closer look."""
        path = target.decode("latin-1")
        dialect = self.dialects.get(path)
        body_bytes = _body_bytes(headers)
        if dialect is None or body_bytes is None or body_bytes > UNREAD_BYTES_MAX:
            return None
        tenant = self._tenant(headers, address)
        if tenant is not None and WORK.fits(cost_of(body_bytes), tenant, work_s()):
            return None
        status, response = self._responses[dialect, WORK.refuse()]
        metrics.bound(metrics.REQUESTS, dialect, path, OTHER, status, QueueFull.reason).inc()
        return response.replace(_NO_ID, new_request_id().encode())

    def _tenant(self, headers: list[tuple[bytes, bytes]], address: str) -> str | None:
        if not self._authorizer.asks_for_keys:
            return address
        texts = [(name, value.decode("latin-1")) for name, value in headers]
        authorizations = [value for name, value in texts if name == b"authorization"]
        api_keys = [value for name, value in texts if name == b"x-api-key"]
        return self._authorizer.tenant_of(authorizations, api_keys, address)


def _body_bytes(headers: list[tuple[bytes, bytes]]) -> int | None:
    """Return the length of a request's body; None: unknown, or a browser asks, which has rules of its own."""
    names = {name for name, _ in headers}
    if b"transfer-encoding" in names or b"origin" in names:
        return None
    return next((int(value) for name, value in headers if name == b"content-length"), 0)


def _response(dialect: Dialect, retry_s: int) -> tuple[str, bytes]:
    """Make a response, with `_NO_ID` in place of the request's id; return its status, too."""
    answer = error_answer(QueueFull(OVERLOAD_TEXT, retry_after_s=retry_s), dialect, _NO_ID.decode())
    headers = {**answer.headers, "content-length": str(len(answer.body)), "x-request-id": _NO_ID.decode()}
    if dialect is Dialect.ANTHROPIC:
        headers["request-id"] = _NO_ID.decode()
    lines = [f"{key}: {value}\r\n".encode() for key, value in headers.items()]
    return str(answer.status), b"".join([STATUS_LINE[answer.status], *lines, b"\r\n", answer.body])
