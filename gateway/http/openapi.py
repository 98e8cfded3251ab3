"""The OpenAPI document, made from the table of routes."""

from typing import Any

from pydantic.json_schema import models_json_schema

from gateway.core.answers import Dialect
from gateway.http.router import Route

_REF = "#/components/schemas/{model}"
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_ERRORS = {
    Dialect.OLLAMA: {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
    Dialect.OPENAI: {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": "string"},
                },
            }
        },
    },
    Dialect.ANTHROPIC: {
        "type": "object",
        "required": ["type", "error", "request_id"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
            "request_id": {"type": "string"},
        },
    },
}


def openapi_document(routes: list[Route], version: str) -> dict[str, Any]:
    """OpenAPI 3.1: every route, its body, its answer and the error form of its dialect."""
    inputs = {route.body for route in routes if route.body is not None}
    outputs = {route.response for route in routes if route.response is not None}
    models = sorted(inputs | outputs, key=lambda model: model.__name__)
    references, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    schemas = {key[0]: reference for key, reference in references.items()}
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    components = dict(definitions.get("$defs", {}))
    components |= {f"{dialect.value}_error": schema for dialect, schema in _ERRORS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Puna", "version": version, "description": "One endpoint for GGUF models"},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
    }


def _operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    schema = schemas[route.response] if route.response is not None else {}
    error = {"$ref": _REF.format(model=f"{route.dialect.value}_error")}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}{route.path}".replace("/", "_").replace("{", "").replace("}", ""),
        "responses": {
            **{str(status): _success(route, schema) for status in route.statuses},
            "default": {"description": "An error", "content": {"application/json": {"schema": error}}},
        },
        # Either header will do; of a gateway without keys neither is asked.
        "security": _security(route),
    }
    if route.body is not None:
        content = {"application/json": {"schema": schemas[route.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    elif route.takes_file:
        content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        operation["requestBody"] = {"required": True, "content": content}
    if route.prefix is not None:
        name = route.path.partition("{")[2].partition("}")[0]
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation


def _security(route: Route) -> list[dict[str, list[str]]]:
    if route.scope is None and not route.needs_key:
        return []
    scopes = [str(route.scope)] if route.scope is not None else []
    return [{name: scopes} for name in _SCHEMES]


def _success(route: Route, schema: Any) -> dict[str, Any]:
    content = {
        media_type: {"schema": schema if position == 0 else {"type": "string"}}
        for position, media_type in enumerate(route.media_types)
    }
    return {"description": "The answer", **({"content": content} if content else {})}
