"""The routes of /puna/v1/keys."""

from gateway.core.keys.keys import Scope
from gateway.http.endpoint.route_errors import OF_MADE_KEYS
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Service
from gateway.http.puna.key_bodies import KeyBody, KeyList, KeyObject
from gateway.http.puna.keys import Keys


def key_routes(service: Service) -> list[Route]:
    """The part of the table that is about keys."""
    keys = Keys(service)
    several, one, scope = "/puna/v1/keys", "/puna/v1/keys/{id}", Scope.ADMIN_KEYS
    return [
        Route(
            method="GET",
            path=several,
            scope=scope,
            endpoint=keys.list_all,
            summary="API keys",
            response=KeyList,
            errors=OF_MADE_KEYS,
        ),
        Route(
            method="POST",
            path=several,
            scope=scope,
            endpoint=keys.create,
            summary="Make an API key",
            body=KeyBody,
            response=KeyObject,
            errors=OF_MADE_KEYS,
        ),
        Route(
            method="GET",
            path=one,
            scope=scope,
            endpoint=keys.get,
            summary="One API key",
            response=KeyObject,
            errors=OF_MADE_KEYS,
        ),
        Route(
            method="DELETE",
            path=one,
            scope=scope,
            endpoint=keys.revoke,
            summary="Revoke an API key",
            response=KeyObject,
            errors=OF_MADE_KEYS,
        ),
    ]
