"""The routes of the page: its files, the stream that it shows, and what its key may do."""

from common.errors import UnknownRoute
from gateway.core.keys.keys import Scope
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Service
from gateway.http.puna.events import Events
from gateway.http.puna.gateway_state import GatewayState
from gateway.http.puna.operation_bodies import WhoAmIAnswer
from gateway.http.puna.overview import Overview
from gateway.http.puna.ui import Page


def page_routes(service: Service) -> list[Route]:
    """List the routes of the page."""
    page = Page()
    files = ("text/html", "text/javascript", "text/css", "image/svg+xml")
    return [
        Route("GET", "/ui", page.index, "The page", scope=None, media_types=files[:1], statuses=(200, 304), quiet=True),
        Route(
            "GET",
            "/ui/{file}",
            page.file,
            "A file of the page",
            scope=None,
            errors=frozenset({UnknownRoute}),
            media_types=files,
            statuses=(200, 304),
            quiet=True,
        ),
        Route(
            "GET",
            "/puna/v1/events",
            Events(Overview(service)).stream,
            "The state of everything, then what changes of it",
            scope=Scope.MODELS_READ,
            media_types=("text/event-stream",),
            quiet=True,
        ),
        Route(
            "GET",
            "/puna/v1/whoami",
            GatewayState(service).whoami,
            "Rights of the caller's key",
            scope=None,
            needs_key=True,
            response=WhoAmIAnswer,
            quiet=True,
        ),
    ]
