"""Challenges of a registry: the header WWW-Authenticate (RFC 9110, 11.6.1). Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from common.errors import RegistryFailed
from runner.core.registry.allowed import AllowedRegistry

HEADER_LENGTH_MAX = 8192
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105  # a grammar's word, no secret
_PARAMETER = re.compile(rf'({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))')
_SCHEME = re.compile(_TOKEN)
_GAP = re.compile(r"[\s,]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """One way to prove oneself. Scheme and names are lower case."""

    scheme: str
    parameters: Mapping[str, str]


def parse_challenges(headers: Iterable[str]) -> list[Challenge]:
    """Every challenge of an answer, in order; what is malformed ends a header."""
    return [challenge for header in headers for challenge in _parse_header(header[:HEADER_LENGTH_MAX])]


def token_url(challenge: Challenge, registry: AllowedRegistry, *, scope: str, plain: bool) -> str:
    """Return the address that issues tokens.

    Raises:
        RegistryFailed: no realm, or one that the registry may not name: its own host or a declared equal of it.
    """
    realm = urlsplit(challenge.parameters.get("realm", ""))
    schemes = ("http", "https") if plain else ("https",)
    if realm.scheme not in schemes or realm.netloc.lower() not in registry.equals:
        shown = f"{realm.scheme}://{realm.netloc.rpartition('@')[2]}"
        raise RegistryFailed(f"the registry {registry.host} sends for a token to {shown[:200]!r}, which is not its own")
    query = dict(parse_qsl(realm.query))
    if service := challenge.parameters.get("service"):
        query["service"] = service
    query["scope"] = challenge.parameters.get("scope") or scope
    return urlunsplit((realm.scheme, realm.netloc, realm.path, urlencode(query), ""))


def _parse_header(text: str) -> list[Challenge]:
    found: list[Challenge] = []
    position = _skip(text, 0)
    while position < len(text):
        scheme = _SCHEME.match(text, position)
        if scheme is None:
            break
        position = _skip(text, scheme.end())
        parameters: dict[str, str] = {}
        while (parameter := _PARAMETER.match(text, position)) is not None:
            name, quoted, plain = parameter.groups()
            parameters[name.lower()] = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain
            position = _skip(text, parameter.end())
        found.append(Challenge(scheme=scheme[0].lower(), parameters=parameters))
    return found


def _skip(text: str, position: int) -> int:
    gap = _GAP.match(text, position)
    return gap.end() if gap is not None else position
