"""Registries that may be asked, and the schemes allowed for each. Pure: texts in, values out.

An entry of the list is `[http://]host[:port][=host[:port]…]`: after "=" stand hosts that may see its
credentials and hand out its tokens.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from common.errors import PermissionDenied

DEFAULT_REGISTRIES = "registry.ollama.ai,hf.co,huggingface.co"
HUB_HOSTS = frozenset({"hf.co", "huggingface.co"})  # one service under two names
_HTTP, _HTTPS = "http://", "https://"
_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedRegistry:
    """A registry that pulls may name."""

    host: str  # "host" or "host:port", lower case
    plain_allowed: bool = False  # HTTP without TLS, where a request asks for it
    equals: frozenset[str] = frozenset()  # other hosts that may see its credentials and hand out its tokens

    def base_url(self, *, insecure: bool) -> str:
        """Scheme and host.

        Raises:
            PermissionDenied: it may be asked over TLS only.
        """
        if insecure and not self.plain_allowed:
            raise PermissionDenied(f"the registry {self.host} may be asked over TLS only")
        return f"{_HTTP if insecure else _HTTPS}{self.host}"

    @property
    def is_hub(self) -> bool:
        """Return True if the hub's token is meant for this registry."""
        return self.host in HUB_HOSTS


def parse_registries(text: str) -> tuple[AllowedRegistry, ...]:
    """Parse the list of an operator, separated by commas.

    Raises:
        ValueError: an entry that names no host.
    """
    return tuple(_parse_entry(entry) for part in text.split(",") if (entry := part.strip().lower()))


def find_registry(registries: Iterable[AllowedRegistry], host: str) -> AllowedRegistry:
    """Find the registry of this name.

    Raises:
        PermissionDenied: it is not on the list.
    """
    for registry in registries:
        if registry.host == host.lower():
            return registry
    raise PermissionDenied(f"the registry {host} is not on the list of this node (PUNA_REGISTRIES)")


def _parse_entry(entry: str) -> AllowedRegistry:
    address = entry.removeprefix(_HTTPS)
    plain = address.startswith(_HTTP)
    hosts = address.removeprefix(_HTTP).rstrip("/").split("=")
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(f"{entry!r} is not [http://]host[:port][=host[:port]]")
    own = hosts[0]
    equals = frozenset(hosts) | (HUB_HOSTS if own in HUB_HOSTS else frozenset())
    return AllowedRegistry(host=own, plain_allowed=plain, equals=equals)
