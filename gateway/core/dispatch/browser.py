"""Browsers that may talk to a gateway: the Host rule against DNS rebinding, and CORS."""

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass

from common.errors import PermissionDenied

# Names that container runtimes give to the machine under them.
_MACHINE_SUFFIXES = (".localhost", ".docker.internal", ".containers.internal")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserPolicy:
    """Policy of this gateway for browsers. `origins` are allowed besides loopback ones, and so are their hosts.

    `is_proven`: a request carries a key, or a name has its certificate. A rebound name brings neither.
    """

    loopback_only: bool
    machine_name: str
    origins: Collection[str] = ()
    is_proven: bool = False

    def check_host(self, hosts: Collection[str]) -> None:
        """Refuse a Host header that a rebound name would carry.

        Raises:
            PermissionDenied: not a name or address of this gateway, or several headers.
        """
        if len(hosts) > 1:
            raise PermissionDenied("forbidden: several Host headers")
        if not self.loopback_only and (self.is_proven or not hosts):  # browsers always send one
            return
        name = host_name(next(iter(hosts), ""))
        # A name without a dot is in no public DNS; compose and Kubernetes give them to services.
        if self._is_own(name) or (not self.loopback_only and name and "." not in name):
            return
        raise PermissionDenied(
            f"forbidden: the Host {name[:100]!r} is not a name of this gateway;"
            f" add http://{name[:100] or 'NAME'} to PUNA_ORIGINS, or ask for keys (PUNA_API_KEYS_FILE)"
        )

    def check_page(self, origin: str | None, host: str, *, site: str, destination: str) -> None:
        """Refuse requests of foreign pages; where a browser names no Origin, of pages of other sites but for links.

        Raises:
            PermissionDenied: as said. `site` and `destination` are the headers Sec-Fetch-Site and -Dest.
        """
        if origin is None:
            is_foreign = site == "cross-site" and destination != "document"
        else:
            is_foreign = not self.allows_origin(origin) and not self.is_own_page(origin, host)
        if is_foreign:
            raise PermissionDenied("forbidden: a web page of another site asks, and its origin is not in PUNA_ORIGINS")

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
        return self.is_proven or self._is_own(host_name(host))

    def _is_own(self, name: str) -> bool:
        machine = self.machine_name.lower()
        if name in ("localhost", machine, f"{machine}.local") or name.endswith(_MACHINE_SUFFIXES):
            return True
        if any(name == host_name(origin.partition("://")[2]) for origin in self.origins if name):
            return True
        address = _address(name)
        # An address cannot be rebound. On loopback this is Ollama's rule.
        return address is not None and (not self.loopback_only or address.is_loopback or address.is_private)


def host_name(host: str) -> str:
    """Return the lower-case name in `name`, `name:port` or `[v6]:port`; empty if it is none of these."""
    host = host.strip().lower()
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        return name if bracket and (not port or (port[0] == ":" and port[1:].isdecimal())) else ""
    name, colon, port = host.partition(":")
    return name if not colon or port.isdecimal() else ""


def is_loopback_name(name: str) -> bool:
    """Return True for localhost and loopback addresses."""
    address = _address(name)
    return name == "localhost" or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
