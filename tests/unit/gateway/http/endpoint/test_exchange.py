"""Objects of one response are freed once it is complete."""

import weakref
from typing import Any

from gateway.answers.record import RequestRecord
from gateway.core.request.answers import Dialect
from gateway.http.endpoint.exchange import Exchange


def made(receive: Any = None, send: Any = None) -> Exchange:
    return Exchange(
        scope={"type": "http", "method": "GET", "headers": []},
        receive=receive,
        send=send,
        record=RequestRecord(dialect=Dialect.OPENAI, route="/v1/models", method="GET"),
        request_id="req_1",
    )


def test_names_of_ignored_fields_make_a_header_of_bounded_size() -> None:
    exchange = made()
    exchange.ignore()
    assert exchange.headers_out == {}
    exchange.ignore("verbosity")
    exchange.ignore("tools[0].a\r\nb, c", "verbosity")
    assert exchange.headers_out == {"x-puna-ignored": "tools[0].a??b??c, verbosity"}
    exchange.ignore(*(f"tools[{index}].{'x' * 500}" for index in range(1000)))
    assert len(exchange.headers_out["x-puna-ignored"]) < 8192


async def test_nothing_keeps_an_exchange_whose_response_is_complete() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("there is no body")

    async def send(message: Any) -> None:
        sent.append(message)

    exchange = made(receive, send)
    await exchange.begin(200, {})
    await exchange.write(b"a")
    await exchange.write(b"b", more=False)
    assert len(sent) == 3
    kept = weakref.ref(send)  # the exchange itself has no room for one
    del exchange, send
    assert kept() is None
