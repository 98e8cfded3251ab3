"""The page: static files of this package, read once, with headers that let nothing else in."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import UnknownRoute
from gateway.http.endpoint.exchange import Exchange

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
