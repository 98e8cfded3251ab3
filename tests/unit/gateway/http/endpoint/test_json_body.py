"""JSON from strangers."""

import json
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InvalidRequest, RequestTooLarge
from gateway.http.endpoint import exchange
from gateway.http.endpoint.exchange import DEPTH_MAX, NODES_MAX, TEXT_BODY_BYTES_MAX, parse_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
async def test_what_json_writes_is_read_back(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert await parse_json(text) == value


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"  \n",
        b"{",
        b"{'a': 1}",
        b"NaN",
        b"[Infinity]",
        b"[1e400]",
        b'{"a": "\\ud800"}',
        b"\xff",
        '{"a": 1}'.encode("utf-16"),
        b'{"model": "a", "model": "b"}',
        b'{"a": {"b": 1, "b": 2}}',
        b'{"a": "\\u003a", "b": 1, "b": 2}',
        b'{"a": "\\u003A", "b": "::", "b": 2}',
        b'{"a": "x:y", "a": "x:y"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"1" * 5_000,
        b"[12345678901234567890]",
        b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1),
        b"[" + b"1," * NODES_MAX + b"1]",
    ],
    ids=lambda raw: repr(raw[:24]),
)
async def test_what_is_no_strict_json_or_over_a_limit_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        await parse_json(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a:b": "c:d", "e\\"f:": ":"}',
        b'["12345678901234567890", 0.12345678901234567890123, 1234567890123456789]',
        b"[" * DEPTH_MAX + b"]" * DEPTH_MAX,
        b'"nul \\u0000 is text"',
        b'{"a": "\\u003a\\u003A:", "b": 1}',
    ],
    ids=lambda raw: repr(raw[:24]),
)
async def test_colons_and_digits_inside_strings_do_not_count(raw: bytes) -> None:
    await parse_json(raw)


async def test_only_bodies_with_images_may_be_large() -> None:
    filler = "x" * TEXT_BODY_BYTES_MAX
    with pytest.raises(RequestTooLarge):
        await parse_json(json.dumps({"prompt": filler}).encode())
    large = await parse_json(json.dumps({"images": [filler]}).encode())
    assert large["images"] == [filler]


KEYS = st.sampled_from(["a", "b", "a:b", "\\u003a"])
TEXTS = st.sampled_from(['":"', '"\\u003a"', '"\\u003A"', '"\\\\u003a"', '"é"', "1", "12345678901234567890", "0.1e20"])


@given(st.lists(st.tuples(KEYS, TEXTS), max_size=5))
async def test_keys_and_digits_are_refused_as_a_parser_of_pairs_sees_them(pairs: list[tuple[str, str]]) -> None:
    raw = ("{" + ",".join(f'"{key}":{text}' for key, text in pairs) + "}").encode()
    seen: list[tuple[str, object]] = json.loads(raw, object_pairs_hook=list)
    too_long = any(isinstance(value, int) and value >= 10**19 for _, value in seen)
    if too_long or len(dict(seen)) < len(seen):
        with pytest.raises(InvalidRequest):
            await parse_json(raw)
    else:
        assert await parse_json(raw) == dict(seen)


@given(JSON, st.integers(0, 3000), st.sampled_from(["x", '"', "\\", "é", "\n"]))
def test_a_large_body_loses_the_same_strings_in_slices(value: object, count: int, letter: str) -> None:
    raw = json.dumps([letter * count, value, {letter * count: letter * 70}]).encode()
    whole = exchange._without_strings(raw)
    with mock.patch.object(exchange, "INLINE_CHARACTERS", 0):
        assert exchange._without_strings(raw) == whole
