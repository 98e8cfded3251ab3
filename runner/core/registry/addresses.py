"""Addresses of a model's parts at a registry, and the redirects that are allowed. Pure."""

import ipaddress
from enum import IntEnum
from urllib.parse import urljoin, urlsplit

from common.errors import RegistryFailed
from runner.core.store.digests import qualified
from runner.core.store.manifest import DOCKER_MANIFEST, OCI_MANIFEST
from runner.core.store.names import StoreName

REDIRECTS_MAX = 5
_NAT64 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
MANIFEST_TYPES = (DOCKER_MANIFEST, OCI_MANIFEST)


def manifest_path(name: StoreName) -> str:
    """Of the manifest of a name, whose parts are checked and need no quoting."""
    return f"/v2/{name.namespace}/{name.model}/manifests/{name.tag}"


def blob_path(name: StoreName, digest: str) -> str:
    """Of a blob; `digest` is 64 hex digits."""
    return f"/v2/{name.namespace}/{name.model}/blobs/{qualified(digest)}"


def pull_scope(name: StoreName) -> str:
    """Return the scope that a token must have."""
    return f"repository:{name.namespace}/{name.model}:pull"


def authority(url: str) -> str:
    """Host and port of a URL, lower case, without a default port."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    default = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    return host.removesuffix(default) if default else host


class Reach(IntEnum):
    """Distance of an address from the public network. A redirect never leads further in than its sender is."""

    PUBLIC = 0
    PRIVATE = 1
    LOOPBACK = 2
    SPECIAL = 3  # link-local (metadata services), multicast, unspecified, reserved


def reach_of(address: str) -> Reach:
    """Classify an address, by the IPv4 address inside it where it has one.

    Raises:
        ValueError: not an address.
    """
    return _reach(ipaddress.ip_address(address.partition("%")[0]))


def _reach(address: _Address) -> Reach:
    inner = _embedded(address) if isinstance(address, ipaddress.IPv6Address) else None
    if inner is not None:
        return _reach(inner)
    if address.is_loopback:
        return Reach.LOOPBACK
    if address.is_link_local or address.is_multicast or address.is_unspecified or address.is_reserved:
        return Reach.SPECIAL
    return Reach.PUBLIC if address.is_global else Reach.PRIVATE


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if any(address in network for network in _NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def check_target(host: str, address: str, *, allowed: Reach) -> None:
    """Refuse the address of a redirect's target that lies further in than `allowed`.

    Raises:
        RegistryFailed: as said.
    """
    if reach_of(address) > allowed:
        shown = host if host == address else f"{host} ({address})"
        raise RegistryFailed(
            f"the registry redirects to {shown}, a {reach_of(address).name.lower()} address: not followed"
        )


def redirected(current: str, location: str, *, plain: bool, allowed: Reach) -> str:
    """Return the target of a redirect. `plain`: the registry is asked without TLS, so the target may be plain too.

    Names that need a resolver are judged when they are connected to, or by the proxy that resolves them.

    Raises:
        RegistryFailed: the target is not followed.
    """
    target = urljoin(current, location)
    parts = urlsplit(target)
    if parts.scheme != "https" and not (plain and parts.scheme == "http"):
        raise RegistryFailed(
            f"{authority(current)} redirects to a {parts.scheme[:16]!r} address, only https is followed"
        )
    if not parts.hostname or "@" in parts.netloc:
        raise RegistryFailed(f"{authority(current)} redirects to an address that names no host")
    if authority(target) != authority(current):
        _check_written(parts.hostname, allowed)
    return target


def _check_written(host: str, allowed: Reach) -> None:
    """Judge what a host's text alone says."""
    name = host.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        check_target(host, "127.0.0.1", allowed=allowed)
        return
    try:
        check_target(host, name, allowed=allowed)
    except ValueError:
        last = name.rpartition(".")[2]
        # Resolvers read these as IPv4 addresses; no public name ends like that.
        if last.isdecimal() or last.startswith("0x"):
            raise RegistryFailed(
                f"the registry redirects to {host}, an address in another form: not followed"
            ) from None
