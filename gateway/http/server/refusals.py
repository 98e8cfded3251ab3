"""Refusals by a gateway with too much to do, from the bytes of a request.

Each has to cost next to nothing: what it costs is missing for the requests that are answered. A request whose head is
plain and ends where it says gets its refusal without being parsed; any other is refused later, by `Exchange`.
"""

import re
from dataclasses import dataclass

from uvicorn.protocols.http.h11_impl import STATUS_PHRASES

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

# Of the body of a refused request, after its refusal was sent; a longer one is refused by `Exchange`.
UNREAD_BYTES_MAX = 1024 * 1024
_LINE = re.compile(rb"POST (/[!->@-~]*) HTTP/1\.1\r\n")  # without a query
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*(?=\r\n)")
_CONNECTION = re.compile(rb"\r\nconnection:[ \t]*(close|keep-alive)[ \t]*(?=\r\n)")
# Each has rules of its own, for framing or for browsers.
_NOT_PLAIN = (b"transfer-encoding", b"\r\nexpect", b"\r\nupgrade", b"\r\norigin", b"\r\n ", b"\r\n\t", b"\0")
_AUTHORIZATION = re.compile(r"\r\nauthorization:[ \t]*([^\r\n]*)", re.IGNORECASE)
_API_KEY = re.compile(r"\r\nx-api-key:[ \t]*([^\r\n]*)", re.IGNORECASE)
_NO_ID = b"-" * len(new_request_id())
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRefusal:
    """Response to a request that was not parsed. `unread_bytes`: of its body, still to come."""

    response: bytes
    closes: bool
    unread_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainHead:
    """Facts of a head that is read without a parser."""

    path: str
    closes: bool
    body_bytes: int
    unread_bytes: int


class Refusals:
    """Refuses requests for answers and vectors that do not fit into the work in progress."""

    def __init__(self, router: Router, authorizer: Authorizer) -> None:
        """Make the responses of all dialects."""
        self.dialects = {route.path: route.dialect for route in router.routes if route.is_limited}
        self._authorizer = authorizer
        self._responses = {
            (dialect, retry_s, closes): _response(dialect, retry_s, closes=closes)
            for dialect in set(self.dialects.values())
            for retry_s in range(RETRY_AFTER_S_MIN, RETRY_AFTER_S_MAX + 1)
            for closes in (False, True)
        }

    def refuse(self, data: bytes, address: str) -> HeadRefusal | None:
        """Refuse the request that these bytes begin with; None: it fits, or has to be parsed to know."""
        head = plain_head(data)
        dialect = self.dialects.get(head.path) if head is not None else None
        if head is None or dialect is None:
            return None
        tenant = self._tenant(data[: data.index(_HEAD_END)], address)
        if tenant is not None and WORK.fits(cost_of(head.body_bytes), tenant, work_s()):
            return None
        status, response = self._responses[dialect, WORK.refuse(), head.closes]
        metrics.bound(metrics.REQUESTS, dialect, head.path, OTHER, status, QueueFull.reason).inc()
        return HeadRefusal(
            response=response.replace(_NO_ID, new_request_id().encode()),
            closes=head.closes,
            unread_bytes=head.unread_bytes,
        )

    def _tenant(self, head: bytes, address: str) -> str | None:
        if not self._authorizer.asks_for_keys:
            return address
        text = head.decode("latin-1")
        return self._authorizer.tenant_of(_AUTHORIZATION.findall(text), _API_KEY.findall(text), address)


def _response(dialect: Dialect, retry_s: int, *, closes: bool) -> tuple[str, bytes]:
    """Make a response, with `_NO_ID` in place of the request's id; return its status, too."""
    answer = error_answer(QueueFull(OVERLOAD_TEXT, retry_after_s=retry_s), dialect, _NO_ID.decode())
    headers = {**answer.headers, "content-length": str(len(answer.body)), "x-request-id": _NO_ID.decode()}
    if dialect is Dialect.ANTHROPIC:
        headers["request-id"] = _NO_ID.decode()
    if closes:
        headers["connection"] = "close"
    lines = [b"HTTP/1.1 %d %b" % (answer.status, STATUS_PHRASES[answer.status])]
    lines += [f"{key}: {value}".encode() for key, value in headers.items()]
    return str(answer.status), b"\r\n".join([*lines, b"", answer.body])


def plain_head(data: bytes) -> PlainHead | None:
    """Read a head that can mean one thing only; None: it may mean others, or there is more behind its request."""
    line, end = _LINE.match(data), data.find(_HEAD_END)
    if line is None or end < 0:
        return None
    head = data[: end + 2].lower()
    lengths = _LENGTH.findall(head)
    if len(lengths) != 1 or head.count(b"content-length") != 1 or head.count(b"\n") != head.count(b"\r\n"):
        return None
    if any(mark in head for mark in _NOT_PLAIN):
        return None
    connections = _CONNECTION.findall(head)
    if len(connections) != head.count(b"\r\nconnection"):
        return None
    body_bytes = int(lengths[0])
    unread_bytes = body_bytes - (len(data) - end - len(_HEAD_END))
    if not 0 <= unread_bytes <= UNREAD_BYTES_MAX:
        return None
    return PlainHead(
        path=line[1].decode(), closes=b"close" in connections, body_bytes=body_bytes, unread_bytes=unread_bytes
    )
