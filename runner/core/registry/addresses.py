"""Addresses of a model's parts at a registry, and the redirects that are allowed. Pure."""

import ipaddress
from urllib.parse import urljoin, urlsplit

from common.errors import RegistryFailed
from runner.core.store.digests import qualified
from runner.core.store.manifest import DOCKER_MANIFEST, OCI_MANIFEST
from runner.core.store.names import StoreName

REDIRECTS_MAX = 5
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


def redirected(current: str, location: str, *, plain: bool) -> str:
    """Return the target of a redirect. `plain`: the registry is asked without TLS, so the target may be plain too.

    Raises:
        RegistryFailed: to where no caller follows.
    """
    target = urljoin(current, location)
    parts = urlsplit(target)
    if parts.scheme != "https" and not (plain and parts.scheme == "http"):
        raise RegistryFailed(
            f"{authority(current)} redirects to a {parts.scheme[:16]!r} address, only https is followed"
        )
    if not parts.hostname or "@" in parts.netloc:
        raise RegistryFailed(f"{authority(current)} redirects to an address that names no host")
    if authority(target) != authority(current) and _is_inside(parts.hostname, urlsplit(current).hostname or ""):
        raise RegistryFailed(f"{authority(current)} redirects to {parts.hostname}, an address of this machine")
    return target


def _is_inside(host: str, asked: str) -> bool:
    """Return True for this machine and link-local services (metadata), unless the registry is there itself."""
    address, own = _address(host), _address(asked)
    if address is None or address.is_link_local:
        return address is not None or (host == "localhost" and asked != "localhost")
    return (address.is_loopback or address.is_unspecified) and not (own is not None and own.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
