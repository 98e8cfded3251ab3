"""The page: its files, and GET /puna/v1/events, the stream that it shows.

The files are read once and sent with headers that let nothing else in. The stream has the state of everything, and then
what changes of it.
"""

import hashlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from common.errors import UnknownRoute
from gateway.core.keys.keys import Scope
from gateway.core.ui.views import View, changes_between, view_for
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Service
from gateway.http.endpoint.streaming import SSE_HEADERS, data_event
from gateway.http.puna.overview import Overview
from gateway.keys.visits import current_key, current_visit, may_use

# Without a change for so long a comment goes out: the reader can tell a quiet cluster from a dead connection.
HEARTBEAT_S = 5.0
FOLDER = Path(__file__).resolve().parents[2] / "ui"
INDEX = "index.html"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Events:
    """One endpoint. A reader that takes nothing for 30 s is dropped (`Exchange.write`); what it missed is not kept."""

    overview: Overview

    async def stream(self, exchange: Exchange) -> None:
        """GET /puna/v1/events."""
        async with self.overview.reading():
            await exchange.begin(200, SSE_HEADERS)
            sent = self._visible(self.overview.view)
            await exchange.write(b"event: snapshot\n" + data_event(sent))
            clock = self.overview.clock
            said_s = clock.now_s()
            while self._may_go_on():
                seen = self._visible(await self.overview.next_view(HEARTBEAT_S))
                if changes := changes_between(sent, seen):
                    await exchange.write(b"event: change\n" + data_event(changes))
                elif clock.now_s() - said_s >= HEARTBEAT_S:
                    await exchange.write(b": quiet\n\n")
                else:
                    continue
                sent, said_s = seen, clock.now_s()
            await exchange.write(b"event: end\ndata: {}\n\n", more=False)

    def _may_go_on(self) -> bool:
        """Return False if this gateway stops or the key is no longer valid; a new connection gets the reason."""
        visit = current_visit()
        return not self.overview.service.draining and (visit is None or visit.is_good())

    def _visible(self, view: View) -> View:
        key = current_key()
        return view_for(
            view,
            may_use=may_use,
            shown=self.overview.service.inference.models.shown,
            own_key_id=key.id if key is not None else None,
            sees_all_keys=key is None or Scope.ADMIN_CLUSTER in key.scopes,
        )


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent."""

    content: bytes = field(repr=False)
    media_type: str
    etag: str


def page_files() -> dict[str, PageFile]:
    """Read every file of the page by its name. Other kinds of files are not served."""
    return {
        path.name: _page_file(path)
        for path in sorted(FOLDER.iterdir())
        if path.suffix in _MEDIA_TYPES and path.is_file()
    }


def _page_file(path: Path) -> PageFile:
    content = path.read_bytes()
    return PageFile(content, _MEDIA_TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


@dataclass(frozen=True, slots=True)
class Page:
    """Two endpoints. The browser asks each time whether a file changed, so that an upgrade never mixes versions."""

    files: dict[str, PageFile] = field(default_factory=page_files)

    async def index(self, exchange: Exchange) -> None:
        """GET /ui."""
        await self._send(exchange, INDEX)

    async def file(self, exchange: Exchange) -> None:
        """GET /ui/{file}."""
        await self._send(exchange, exchange.path_value)

    async def _send(self, exchange: Exchange, name: str) -> None:
        found = self.files.get(name)
        if found is None:
            raise UnknownRoute(f"the page has no file {name[:64]}")
        headers = {"cache-control": "no-cache", "etag": found.etag, **_SECURITY_HEADERS}
        if exchange.headers.get("if-none-match") == found.etag:
            await exchange.begin(304, headers)
            await exchange.write(b"", more=False)
            return
        await exchange.respond(200, found.content, {"content-type": found.media_type, **headers})


def page_routes(service: Service) -> list[Route]:
    """List the routes of the page."""
    page = Page()
    files = ("text/html", "text/javascript", "text/css", "image/svg+xml")
    file = partial(Route, "GET", scope=None, statuses=(200, 304), quiet=True)
    return [
        file("/ui", page.index, "The page", media_types=files[:1]),
        file("/ui/{file}", page.file, "A file of the page", errors=frozenset({UnknownRoute}), media_types=files),
        Route(
            "GET",
            "/puna/v1/events",
            Events(Overview(service)).stream,
            "The state of everything, then what changes of it",
            scope=Scope.MODELS_READ,
            media_types=("text/event-stream",),
            quiet=True,
        ),
    ]
