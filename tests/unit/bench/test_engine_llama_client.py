import json

import pytest

from bench.engine import llama_client
from bench.engine.arrivals import Arrivals
from bench.engine.streams import BadAnswer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(event: dict[str, object]) -> bytes:
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def received(*parts: bytes) -> Arrivals:
    arrivals = Arrivals()
    for part in parts:
        arrivals.data_received(part)
    return arrivals


BEGIN: dict[str, object] = {"content": "", "tokens": [], "stop": False}
FIRST: dict[str, object] = {"content": "a", "tokens": [7], "stop": False}
SECOND: dict[str, object] = {"content": "bc", "tokens": [8, 9], "stop": False}
FINAL: dict[str, object] = {
    "content": "",
    "tokens": [],
    "stop": True,
    "tokens_evaluated": 5,
    "tokens_predicted": 4,
    "timings": {"cache_n": 2},
}


def test_tokens_count_when_their_event_is_complete() -> None:
    whole = chunk(FIRST)
    comment = b"8\r\n: ping\n\n\r\n"  # of a server that computes a long prompt
    end = chunk(SECOND) + comment + chunk(FINAL) + b"0\r\n\r\n"
    arrivals = received(HEAD + chunk(BEGIN), whole[:9], whole[9:], end)

    stream = llama_client._token_stream(0.0, arrivals)

    assert (stream.token_ids, stream.text) == ((7, 8, 9), "abc")
    assert (stream.prompt_tokens, stream.cached_tokens, stream.generated_tokens) == (5, 2, 4)
    assert stream.token_times_s[0] == arrivals.time_s(len(HEAD + chunk(BEGIN) + whole) - 2)
    assert stream.token_times_s[1] == stream.token_times_s[2] == stream.end_s


@pytest.mark.parametrize(
    "parts",
    [
        [b"HTTP/1.1 503 Service Unavailable\r\n\r\n{}"],
        [HEAD, chunk({"error": {"message": "lost"}})],
        [HEAD, chunk(FIRST)],
    ],
)
def test_a_refusal_an_error_or_a_broken_stream_is_no_result(parts: list[bytes]) -> None:
    with pytest.raises(BadAnswer):
        llama_client._token_stream(0.0, received(*parts))
