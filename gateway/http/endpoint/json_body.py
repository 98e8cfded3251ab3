"""Read JSON bodies from strangers: strict, bounded, and off the event loop when large."""

import asyncio
import re
from typing import Any

import orjson

from common.errors import InvalidRequest, RequestTooLarge

BODY_BYTES_MAX = 32 * 1024 * 1024
# A body without images has no reason to be larger; one that is, is refused once it is known to have none.
TEXT_BODY_BYTES_MAX = 10 * 1024 * 1024
OFF_LOOP_BYTES = 1024 * 1024
DEPTH_MAX = 64
NODES_MAX = 200_000

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_LONG_INTEGER = re.compile(rb"(?<![0-9.eE+])-?[0-9]{20,}(?![0-9.eE])")
_IMAGE_FIELDS = frozenset({"images", "image_url"})


async def parse_json(raw: bytes) -> Any:
    """Parse the value of a body.

    Raises:
        InvalidRequest: no valid JSON, or one of the limits is exceeded.
        RequestTooLarge: larger than a body without images may be.
    """
    if len(raw) > OFF_LOOP_BYTES:
        return await asyncio.to_thread(_parsed, raw)
    return _parsed(raw)


def _parsed(raw: bytes) -> Any:
    if not raw.strip():
        raise InvalidRequest("missing request body")
    try:
        value = orjson.loads(raw)  # refuses NaN, infinity, lone surrogates, anything but UTF-8
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"invalid JSON in request body: {error}") from error
    keys, has_images = _measured(value)
    # The rest of valid JSON without its strings shows what parsers hide: one colon per key, and every digit.
    bare = _STRING.sub(b"", raw)
    if bare.count(b":") != keys:
        raise InvalidRequest("invalid JSON in request body: duplicate key")
    if _LONG_INTEGER.search(bare):
        raise InvalidRequest("invalid JSON in request body: integer with more than 19 digits")
    if len(raw) > TEXT_BODY_BYTES_MAX and not has_images:
        raise RequestTooLarge(f"request body without images exceeds {TEXT_BODY_BYTES_MAX} bytes")
    return value


def _measured(value: Any) -> tuple[int, bool]:
    """Count the keys, look for images, hold depth and size to their limits."""
    keys, nodes, depth, has_images = 0, 0, 0, False
    level = [value]
    while level:
        nodes += len(level)
        if nodes > NODES_MAX:
            raise InvalidRequest(f"request body has more than {NODES_MAX} values")
        below: list[Any] = []
        containers = [node for node in level if isinstance(node, dict | list)]
        if containers and depth == DEPTH_MAX:
            raise InvalidRequest(f"request body is nested deeper than {DEPTH_MAX} levels")
        for node in containers:
            if isinstance(node, dict):
                keys += len(node)
                has_images = has_images or not _IMAGE_FIELDS.isdisjoint(node)
                below.extend(node.values())
            else:
                below.extend(node)
        level, depth = below, depth + 1
    return keys, has_images
