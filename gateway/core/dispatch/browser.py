"""Browsers that may talk to a gateway: the Host rule against DNS rebinding, and CORS."""

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass

from common.errors import PermissionDenied

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")
_FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserPolicy:
    """Policy of this gateway for browsers. `origins` are allowed besides loopback ones."""

    loopback_only: bool
    machine_name: str
    origins: Collection[str] = ()
    asks_for_keys: bool = False

    def check_host(self, hosts: Collection[str]) -> None:
        """Refuse a Host header that a rebound name would carry. Only a loopback listener relies on it.

        Raises:
            PermissionDenied: not a name or address of this machine, or several headers.
        """
        name = host_name(next(iter(hosts), ""))
        if len(hosts) > 1 or (self.loopback_only and not self._is_local(name)):
            raise PermissionDenied(_FORBIDDEN)

    def allows_origin(self, origin: str) -> bool:
        """Return True if pages of this origin may call."""
        if origin in self.origins:
            return True
        scheme, separator, host = origin.partition("://")
        return bool(separator) and scheme in ("http", "https") and is_loopback_name(host_name(host))

    def is_own_page(self, origin: str, host: str) -> bool:
        """Return True if a page of this gateway calls; without keys only under names that cannot be rebound."""
        authority = origin.partition("://")[2].lower()
        if not authority or authority != host.strip().lower():
            return False
        return self.asks_for_keys or self._is_local(host_name(host)) or _address(host_name(host)) is not None

    def _is_local(self, name: str) -> bool:
        if name in ("localhost", self.machine_name.lower()) or name.endswith(_LOCAL_SUFFIXES):
            return True
        address = _address(name)
        return address is not None and (address.is_loopback or address.is_private)


def host_name(host: str) -> str:
    """Return the lower-case name in `name`, `name:port` or `[v6]:port`; empty if it is none of these."""
    host = host.strip().lower()
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        return name if bracket and (not port or _is_port(port)) else ""
    name, colon, port = host.partition(":")
    return name if not colon or port.isdecimal() else ""


def is_loopback_name(name: str) -> bool:
    """Return True for localhost and loopback addresses."""
    address = _address(name)
    return name == "localhost" or (address is not None and address.is_loopback)


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isdecimal()


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
