"""Heads of requests that an overloaded gateway refuses without parsing them: those that can mean one thing only."""

import pytest

from gateway.http.server.refusals import UNREAD_BYTES_MAX, plain_head

PLAIN = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"


def with_line(line: bytes) -> bytes:
    return PLAIN.replace(b"Host:", line + b"\r\nHost:") + b"body"


@pytest.mark.parametrize(
    ("data", "closes", "unread"),
    [
        (PLAIN + b"body", False, 0),
        (PLAIN, False, 4),
        (PLAIN + b"b", False, 3),
        (with_line(b"Connection: Keep-Alive"), False, 0),
        (with_line(b"connection:close"), True, 0),
        (with_line(b"Authorization: Bearer x"), False, 0),
    ],
)
def test_aplain_head_says_where_its_body_ends(data: bytes, closes: bool, unread: int) -> None:
    head = plain_head(data)
    assert head is not None
    assert (head.path, head.closes, head.body_bytes, head.unread_bytes) == ("/api/chat", closes, 4, unread)


@pytest.mark.parametrize(
    "data",
    [
        PLAIN + b"body and more",
        PLAIN[:-2],
        PLAIN.replace(b"POST", b"GET"),
        PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
        PLAIN.replace(b"/chat", b"/chat?x=1"),
        PLAIN.replace(b"/api", b"http://localhost/api"),
        PLAIN.replace(b"Content-Length: 4\r\n", b""),
        PLAIN.replace(b": 4", b": +4"),
        PLAIN.replace(b": 4", b": 4, 4"),
        PLAIN.replace(b"Content-Length", b"Content-Length "),
        PLAIN.replace(b": 4", b": %d" % (UNREAD_BYTES_MAX + 1)),
        with_line(b"Content-Length: 4"),
        with_line(b"Content-Length: 5"),
        with_line(b"Transfer-Encoding: chunked"),
        with_line(b"Expect: 100-continue"),
        with_line(b"Origin: http://localhost"),
        with_line(b"Upgrade: h2c"),
        with_line(b"Connection: upgrade"),
        with_line(b"Connection: close\r\nConnection: close, te"),
        with_line(b"X: a\r\n b"),
        with_line(b"X: a\nContent-Lengt: 5"),
        with_line(b"X: \0"),
    ],
)
def test_any_other_head_is_left_to_the_parser(data: bytes) -> None:
    assert plain_head(data) is None
