"""The table of routes: dispatch, allowed methods and the OpenAPI document all come from it."""

from dataclasses import dataclass

from pydantic import BaseModel

from common.errors import MethodNotAllowed, PunaError, UnknownRoute
from gateway.core.asked.answers import Dialect
from gateway.core.keys.keys import Scope
from gateway.http.endpoint.exchange import Endpoint

PATH_LENGTH_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path.

    A path that ends in `{name}` takes the rest of the URL, slashes included; where more comes after it, a piece of one,
    or with `{model}` all of a model's name.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    scope: Scope | None  # what a key needs for it; None: open to everybody
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
    def prefix(self) -> str | None:
        """What a path must start with, for a route that takes something from it."""
        return self.path.partition("{")[0] if "{" in self.path else None

    @property
    def suffix(self) -> str:
        """What it must end with."""
        return self.path.partition("}")[2]

    @property
    def dialect(self) -> Dialect:
        """Whose bodies and errors it speaks."""
        return dialect_of(self.path)


@dataclass(frozen=True, slots=True)
class Match:
    """A route, and what stood where its path has a name."""

    route: Route
    path_value: str = ""


def dialect_of(path: str) -> Dialect:
    """The dialect of a path, known or not."""
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
            if route.prefix is None:
                self._exact.setdefault(route.path, {})[route.method] = route
            else:
                self._around.setdefault((route.prefix, route.suffix), {})[route.method] = route

    def match(self, method: str, path: str) -> Match:
        """The route of a method and path.

        Raises:
            UnknownRoute: no such path.
            MethodNotAllowed: the path exists; `allowed` has its methods.
        """
        methods, value = self._methods_of(path)
        if not methods:
            raise UnknownRoute(f"unknown URL: {method} {path[:PATH_LENGTH_MAX]}")
        if method not in methods:
            raise MethodNotAllowed(f"method {method} is not allowed for {path[:PATH_LENGTH_MAX]}")
        return Match(methods[method], value)

    def allowed(self, path: str) -> list[str]:
        """The methods of a path."""
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
