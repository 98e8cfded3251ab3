"""The routes that change what models there are."""

from gateway.core.keys.keys import Scope
from gateway.http.endpoint.route_errors import NEVER_THERE, OF_STORES
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Service
from gateway.http.ollama.model_store import ModelStore
from gateway.http.ollama.store_bodies import CopyBody, CreateBody, DeleteBody, PullBody, StatusLine

_LINES = ("application/json", "application/x-ndjson")
_BLOB = "/api/blobs/{digest}"
_REFUSED = ("/api/push", "/api/me", "/api/signout", "/api/experimental/{path}")


def store_routes(service: Service) -> list[Route]:
    """Their part of the table."""
    store = ModelStore(service)
    return [
        Route(
            method="POST",
            path="/api/pull",
            scope=Scope.MODELS_WRITE,
            endpoint=store.pull,
            errors=OF_STORES,
            summary="Fetch a model from its registry",
            body=PullBody,
            response=StatusLine,
            media_types=_LINES,
        ),
        Route(
            method="POST",
            path="/api/create",
            scope=Scope.MODELS_WRITE,
            endpoint=store.create,
            errors=OF_STORES,
            summary="Make a model from another one or from files",
            body=CreateBody,
            response=StatusLine,
            media_types=_LINES,
        ),
        Route(
            method="POST",
            path="/api/copy",
            scope=Scope.MODELS_WRITE,
            endpoint=store.copy,
            errors=OF_STORES,
            summary="Give a model a second name",
            body=CopyBody,
            media_types=(),
        ),
        Route(
            method="DELETE",
            path="/api/delete",
            scope=Scope.MODELS_WRITE,
            endpoint=store.delete,
            errors=OF_STORES,
            summary="Forget a model",
            body=DeleteBody,
            media_types=(),
        ),
        Route(
            method="HEAD",
            path=_BLOB,
            scope=Scope.MODELS_WRITE,
            endpoint=store.has_blob,
            errors=OF_STORES,
            summary="Whether a file is there",
            media_types=(),
            statuses=(200, 404),
        ),
        Route(
            method="POST",
            path=_BLOB,
            scope=Scope.MODELS_WRITE,
            endpoint=store.put_blob,
            errors=OF_STORES,
            summary="Send a file",
            media_types=(),
            takes_file=True,
            statuses=(200, 201),
        ),
        *(
            Route(
                method="POST",
                path=path,
                scope=Scope.MODELS_WRITE,
                endpoint=store.refuse_push,
                errors=NEVER_THERE,
                summary="Not supported",
                statuses=(),
            )
            for path in _REFUSED
        ),
    ]
