"""What one response leaves behind."""

import weakref
from typing import Any

from gateway.answers.record import RequestRecord
from gateway.core.asked.answers import Dialect
from gateway.http.endpoint.exchange import Exchange


async def test_nothing_keeps_an_exchange_whose_response_is_complete() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("there is no body")

    async def send(message: Any) -> None:
        sent.append(message)

    exchange = Exchange(
        scope={"type": "http", "method": "GET", "headers": []},
        receive=receive,
        send=send,
        record=RequestRecord(dialect=Dialect.OPENAI, route="/v1/models", method="GET"),
        request_id="req_1",
    )
    await exchange.begin(200, {})
    await exchange.write(b"a")
    await exchange.write(b"b", more=False)
    assert len(sent) == 3
    kept = weakref.ref(send)  # the exchange itself has no room for one
    del exchange, send
    assert kept() is None
