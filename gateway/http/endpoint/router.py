"""The table of routes: dispatch, allowed methods and the OpenAPI document all come from it."""

from dataclasses import KW_ONLY, dataclass

from pydantic import BaseModel

from common.errors import MethodNotAllowed, PunaError, UnknownRoute
from gateway.core.keys.keys import Scope
from gateway.core.request.answers import Dialect
from gateway.http.endpoint.exchange import Endpoint

PATH_LENGTH_MAX = 4096
ANY_METHOD = "*"
# Scopes of requests for answers and vectors; state, models and keys can be read and changed at any time.
_LIMITED = frozenset({Scope.INFER, Scope.EMBED})
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path; with `ANY_METHOD` all of them, of its prefix alone, too.

    A path that ends in `{name}` takes the rest of the URL, slashes included; where more comes after it, a piece of one,
    or with `{model}` all of a model's name.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    _: KW_ONLY
    scope: Scope | None  # what a key needs for it; None: open without a key
    body: type[BaseModel] | None = None
    response: type[BaseModel] | None = None
    media_types: tuple[str, ...] = ("application/json",)  # of the response; the first describes `response`
    quiet: bool = False  # not worth a log line
    takes_file: bool = False  # its body is a file of any kind and length
    statuses: tuple[int, ...] = (200,)  # of what went well
    needs_key: bool = False  # any good key, where keys are asked for; for routes without a scope
    errors: frozenset[type[PunaError]] = frozenset()  # beyond those that follow from its scope and body
    other_answers: tuple[tuple[int, type[BaseModel]], ...] = ()  # that are neither errors nor `response`, by status

    @property
    def is_limited(self) -> bool:
        """True if its requests are refused while the gateway has too much to do."""
        return self.body is not None and self.scope in _LIMITED and self.prefix is None

    @property
    def prefix(self) -> str | None:
        """Return the start that a path must have, for a route that takes a name from it."""
        return self.path.partition("{")[0] if "{" in self.path else None

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that it answers."""
        return _METHODS if self.method == ANY_METHOD else (self.method,)

    @property
    def suffix(self) -> str:
        """Return the end that a path must have."""
        return self.path.partition("}")[2]

    @property
    def dialect(self) -> Dialect:
        """Return the dialect of its bodies and errors."""
        return dialect_of(self.path)


def dialect_of(path: str) -> Dialect:
    """Return the dialect of a path, known or not."""
    if path in {"/", "/api"} or path.startswith("/api/"):
        return Dialect.OLLAMA
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return Dialect.ANTHROPIC
    return Dialect.OPENAI


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self._exact: dict[str, dict[str, Route]] = {}
        self._around: dict[tuple[str, str], dict[str, Route]] = {}  # what comes before and after the name
        for route in routes:
            by_method = dict.fromkeys(route.methods, route)
            if route.prefix is None:
                self._exact.setdefault(route.path, {}).update(by_method)
                continue
            self._around.setdefault((route.prefix, route.suffix), {}).update(by_method)
            if route.method == ANY_METHOD:
                self._exact.setdefault(route.prefix.rstrip("/"), {}).update(by_method)

    def match(self, method: str, path: str) -> tuple[Route, str]:
        """Find the route of a method and path, and what stands where the path has a name.

        Raises:
            UnknownRoute: no such path.
            MethodNotAllowed: the path exists; `allowed` has its methods.
        """
        methods, value = self._methods_of(path)
        if not methods:
            raise UnknownRoute(f"unknown URL: {method} {path[:PATH_LENGTH_MAX]}")
        if method not in methods:
            raise MethodNotAllowed(f"method {method} is not allowed for {path[:PATH_LENGTH_MAX]}")
        return methods[method], value

    def allowed(self, path: str) -> list[str]:
        """List the methods of a path."""
        return sorted(self._methods_of(path)[0])

    def _methods_of(self, path: str) -> tuple[dict[str, Route], str]:
        if exact := self._exact.get(path):
            return exact, ""
        for (prefix, suffix), methods in self._around.items():
            value = path.removeprefix(prefix).removesuffix(suffix)
            is_piece = not suffix or "/" not in value or "{model}" in next(iter(methods.values())).path
            if value and is_piece and len(path) == len(prefix) + len(value) + len(suffix):
                return methods, value
        return {}, ""
