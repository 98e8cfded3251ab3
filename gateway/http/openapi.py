"""The OpenAPI document, made from the table of routes."""

from typing import Any

from pydantic.json_schema import models_json_schema

from common.errors import AuditUnavailable
from gateway.core.keys.keys import Scope
from gateway.core.request.answers import Dialect
from gateway.http.endpoint.route_errors import OF_ANSWERS, OF_BODIES, OF_EVERY_ROUTE, OF_KEYS, Errors, reasons_by_status
from gateway.http.endpoint.router import ANY_METHOD, Route
from gateway.keys.audit import is_administrative

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
    """Build the OpenAPI 3.1 document: every route, its body, its answers and every status that it can end in."""
    bodies = {route.body for route in routes if route.body is not None}
    answers = {route.response for route in routes if route.response is not None}
    answers |= {answer for route in routes for _, answer in route.other_answers}
    models = sorted(bodies | answers, key=lambda model: model.__name__)
    references, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    schemas = {key[0]: reference for key, reference in references.items()}
    paths: dict[str, Any] = {}
    for route in routes:
        if route.method != ANY_METHOD:  # what is not here is no part of the API
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
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}{route.path}".replace("/", "_").replace("{", "").replace("}", ""),
        "responses": _responses(route, schemas),
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


def errors_of(route: Route) -> Errors:
    """Return every error that a route can end in."""
    errors = OF_EVERY_ROUTE | route.errors
    if route.scope is not None or route.needs_key:
        errors |= OF_KEYS
    if is_administrative(route.scope, f"{route.method} {route.path}"):
        errors |= {AuditUnavailable}
    if route.body is not None or route.takes_file:
        errors |= OF_BODIES
    if route.scope in (Scope.INFER, Scope.EMBED):
        errors |= OF_ANSWERS
    return errors


def _responses(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    """Describe responses by status: success, other answers, and the errors in the form of the route's dialect."""
    schema = schemas[route.response] if route.response is not None else {}
    responses = {str(status): _success(route, schema if status == 200 else {}) for status in route.statuses}
    for status, reasons in reasons_by_status(errors_of(route), route.dialect).items():
        error = {"$ref": _REF.format(model=f"{route.dialect.value}_error")}
        content = {} if route.method == "HEAD" else {"content": {"application/json": {"schema": error}}}
        responses.setdefault(str(status), {"description": ", ".join(reasons), **content})
    for status, answer in route.other_answers:
        content = {"application/json": {"schema": schemas[answer]}}
        responses[str(status)] = {"description": (answer.__doc__ or "").strip(), "content": content}
    return responses


def _success(route: Route, schema: Any) -> dict[str, Any]:
    content = {
        media_type: {"schema": schema if position == 0 else {"type": "string"}}
        for position, media_type in enumerate(route.media_types)
    }
    has_body = bool(content) and route.method != "HEAD"
    return {"description": "The answer", **({"content": content} if has_body else {})}
