from bench.engine import http2


def test_a_call_is_a_head_and_one_message() -> None:
    data = http2.call(3, authority="host:1", path="/a.B/C", message=b"abc")

    head, body = http2.whole_frames(data, 0)

    assert (head.kind, head.stream, head.ends_stream) == (http2.HEADERS, 3, False)
    assert b"/a.B/C" in head.payload
    assert (body.kind, body.stream, body.ends_stream) == (http2.DATA, 3, True)
    assert http2.messages([head, body], 3) == [(b"abc", len(data))]


def test_a_long_message_is_cut_into_frames_that_every_peer_takes() -> None:
    message = bytes(40_000)

    frames = list(http2.whole_frames(http2.call(1, authority="a", path="/b", message=message), 0))

    assert [len(part.payload) for part in frames[1:]] == [16384, 16384, 7237]
    assert [part.ends_stream for part in frames[1:]] == [False, False, True]
    assert http2.messages(frames, 1) == [(message, frames[-1].end)]


def test_frames_are_read_as_far_as_they_are_there() -> None:
    data = http2.frame(http2.DATA, 0, 1, b"first") + http2.frame(http2.DATA, 0, 3, b"second")

    whole = list(http2.whole_frames(data[:-1], 0))

    assert [(part.stream, part.payload) for part in whole] == [(1, b"first")]
    assert [part.payload for part in http2.whole_frames(data, whole[0].end)] == [b"second"]


def test_messages_of_other_streams_are_left_out_and_split_ones_joined() -> None:
    prefixed = b"\0\0\0\0\4abcd"
    data = b"".join(
        (
            http2.frame(http2.DATA, 0, 1, prefixed[:3]),
            http2.frame(http2.DATA, 0, 3, b"\0\0\0\0\1x"),
            http2.frame(http2.DATA, 0, 1, prefixed[3:] + b"\0\0\0\0\0"),
        )
    )
    frames = list(http2.whole_frames(data, 0))

    assert http2.messages(frames, 1) == [(b"abcd", len(data)), (b"", len(data))]


def test_settings_and_pings_are_answered_once() -> None:
    sent = ((http2.PING, 0, b"12345678"), (http2.PING, http2.ACK, b""), (http2.SETTINGS, 0, b"x"))
    ping, answer, settings = (
        next(http2.whole_frames(http2.frame(kind, flags, 0, payload), 0)) for kind, flags, payload in sent
    )

    assert http2.answer_to(ping) == http2.frame(http2.PING, http2.ACK, 0, b"12345678")
    assert http2.answer_to(answer) == b""
    assert http2.answer_to(settings) == http2.frame(http2.SETTINGS, http2.ACK, 0, b"")
