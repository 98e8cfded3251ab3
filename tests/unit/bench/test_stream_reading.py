import pytest

from bench.stream_client import BadAnswer, read_result

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text: str) -> bytes:
    return b"data: " + text.encode() + b"\n\n"


ROLE = event('{"choices": [{"delta": {"role": "assistant", "content": ""}}]}')
FIRST = event('{"choices": [{"delta": {"content": "a"}}]}')
SECOND = event('{"choices": [{"delta": {"content": "b"}, "finish_reason": "length"}], "usage": null}')
USAGE = event(
    '{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, '
    '"prompt_tokens_details": {"cached_tokens": 1}}}'
)
DONE = b"data: [DONE]\n\n"


def test_the_first_token_is_the_first_text_and_not_the_role() -> None:
    arrivals = [(1.0, HEAD + chunk(ROLE)), (2.0, chunk(FIRST)), (3.0, chunk(SECOND) + chunk(USAGE) + chunk(DONE))]

    result = read_result(0.5, arrivals)

    assert (result.sent_s, result.first_token_s, result.end_s) == (0.5, 2.0, 3.0)
    assert (result.text, result.finish_reason) == ("ab", "length")
    assert (result.prompt_tokens, result.completion_tokens, result.cached_tokens) == (3, 2, 1)
    assert result.pieces_s == (2.0, 3.0)


def test_an_event_counts_when_its_last_byte_has_come_however_the_bytes_are_cut() -> None:
    whole = HEAD + chunk(ROLE) + chunk(FIRST + SECOND[:9]) + chunk(SECOND[9:] + USAGE + DONE) + b"0\r\n\r\n"
    arrivals = [(float(number), whole[number : number + 1]) for number in range(len(whole))]

    result = read_result(0.0, arrivals)

    assert result.text == "ab"
    assert result.first_token_s >= whole.index(FIRST[-4:])
    assert result.completion_tokens == 2


def test_an_answer_without_chunks_is_read_too() -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"

    result = read_result(0.0, [(1.0, head + ROLE), (2.0, FIRST), (3.0, SECOND + USAGE + DONE)])

    assert (result.first_token_s, result.text) == (2.0, "ab")


def test_a_refusal_is_no_result() -> None:
    with pytest.raises(BadAnswer, match="503"):
        read_result(0.0, [(1.0, b"HTTP/1.1 503 Service Unavailable\r\n\r\n{}")])


def test_an_error_in_the_stream_is_no_result() -> None:
    with pytest.raises(BadAnswer, match="lost"):
        read_result(0.0, [(1.0, HEAD + chunk(FIRST) + chunk(event('{"error": {"message": "lost"}}')))])


def test_a_stream_without_usage_is_no_result() -> None:
    with pytest.raises(BadAnswer, match="usage"):
        read_result(0.0, [(1.0, HEAD + chunk(FIRST) + chunk(DONE))])
