"""The routes of the page: its files, the stream that it shows, and what its key may do."""

from common.errors import UnknownRoute
from gateway.core.keys.keys import Scope
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Service
from gateway.http.puna.events import Events
from gateway.http.puna.operation_bodies import WhoAmIAnswer
from gateway.http.puna.overview import Overview
from gateway.http.puna.ui import Page
from gateway.http.puna.whoami import WhoAmI


def page_routes(service: Service) -> list[Route]:
    """The table's part."""
    page = Page()
    files = ("text/html", "text/javascript", "text/css", "image/svg+xml")
    return [
        Route(
            method="GET",
            path="/ui",
            scope=None,
            endpoint=page.index,
            summary="The page",
            media_types=files[:1],
            statuses=(200, 304),
            quiet=True,
        ),
        Route(
            method="GET",
            path="/ui/{file}",
            scope=None,
            endpoint=page.file,
            summary="A file of the page",
            errors=frozenset({UnknownRoute}),
            media_types=files,
            statuses=(200, 304),
            quiet=True,
        ),
        Route(
            method="GET",
            path="/puna/v1/events",
            scope=Scope.MODELS_READ,
            endpoint=Events(Overview(service)).stream,
            summary="The state of everything, then what changes of it",
            media_types=("text/event-stream",),
            quiet=True,
        ),
        Route(
            method="GET",
            path="/puna/v1/whoami",
            scope=None,
            needs_key=True,
            endpoint=WhoAmI(service).respond,
            summary="What the caller's key is good for",
            response=WhoAmIAnswer,
            quiet=True,
        ),
    ]
