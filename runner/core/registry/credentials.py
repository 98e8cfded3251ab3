"""Credentials for registries, from a file as container tools write it. Pure: text in, values out."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A user of a registry. Never shown."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r})"

    def basic(self) -> str:
        """Value of the header Authorization."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def parse_credentials(content: bytes) -> Mapping[str, Credentials]:
    """By host[:port], from {"auths": {"host": {"auth": base64("user:password")}}}.

    Raises:
        ValueError: not of this form; the text names the host, never a value.
    """
    try:
        entries = json.loads(content)["auths"].items()
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError('not a file of the form {"auths": {"host": {"auth": "…"}}}') from None
    return {_host(key): _entry(key, value) for key, value in entries}


def _host(key: str) -> str:
    return (urlsplit(key).netloc if "://" in key else key.partition("/")[0]).lower()


def _entry(key: str, value: object) -> Credentials:
    if isinstance(value, dict):
        user, password = value.get("username"), value.get("password")
        if isinstance(user, str) and isinstance(password, str):
            return Credentials(user=user, password=password)
        try:
            decoded = base64.b64decode(str(value.get("auth", "")), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            decoded = ""
        name, separator, secret = decoded.partition(":")
        if separator:
            return Credentials(user=name, password=secret)
    raise ValueError(f"the entry of {key!r} has no user and password")
