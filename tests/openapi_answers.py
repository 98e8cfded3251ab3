"""Holds an answer to the OpenAPI document: its status, its media type and, where it is JSON, its form."""

from functools import cache
from typing import Any

import jsonschema
import orjson


def fault_of(document: dict[str, Any], method: str, path: str, status: int, media_type: str, content: bytes) -> str:
    """Describe the fault of an answer; empty: none. `path` is the document's, with its braces."""
    described = document["paths"][path][method.lower()]["responses"].get(str(status))
    if described is None:
        return f"the document has no status {status}"
    if method.upper() == "HEAD" or not content:
        return ""
    kind, media_types = media_type.partition(";")[0], described.get("content", {})
    if kind not in media_types:
        return f"the document has no media type {kind!r} for {status}"
    if kind != "application/json":
        return ""
    schema = media_types[kind].get("schema", {})
    error = next(_validator(_key(schema), _key(document["components"])).iter_errors(orjson.loads(content)), None)
    return "" if error is None else f"{error.json_path}: {error.message[:300]}"


def _key(value: object) -> bytes:
    return orjson.dumps(value)


@cache
def _validator(schema: bytes, components: bytes) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**orjson.loads(schema), "components": orjson.loads(components)})
