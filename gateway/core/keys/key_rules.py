"""Rules for managing keys with the scope admin:keys. Pure.

A key cannot grant a right that it lacks. A key without admin:cluster belongs to one tenant: others' keys do not exist.
"""

import ipaddress
from collections.abc import Iterable

from common.errors import InvalidRequest, PermissionDenied
from gateway.core.keys.key_records import MADE_MAX
from gateway.core.keys.keys import Key, Scope

# Enough to change a key without a gap: make the new one, put it in place, revoke the old one.
ACTIVE_PER_OWNER = 2


def may_see(who: Key, key: Key) -> bool:
    """Return True if a key is visible to the caller."""
    return Scope.ADMIN_CLUSTER in who.scopes or key.tenant == who.tenant


def check_gift(who: Key, key: Key) -> None:
    """Check that the caller may make a key.

    Raises:
        PermissionDenied: it could do what its maker cannot.
    """
    if not may_see(who, key):
        raise PermissionDenied("this API key makes keys of its own tenant only")
    if beyond := sorted(key.scopes - who.scopes):
        raise PermissionDenied(f"this API key cannot give the scope {beyond[0]}, which it lacks")
    if who.model_keys and not (key.model_keys and key.model_keys <= who.model_keys):
        raise PermissionDenied("this API key is for some models only, and so are those that it makes")
    if who.networks and not (key.networks and all(_within(one, who.networks) for one in key.networks)):
        raise PermissionDenied("this API key is for some networks only, and so are those that it makes")
    if who.expires_unix_s is not None and (key.expires_unix_s is None or key.expires_unix_s > who.expires_unix_s):
        raise PermissionDenied("this API key makes no key that outlives it")


def _within(network: str, others: Iterable[str]) -> bool:
    inner = ipaddress.ip_network(network)
    return any(
        inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]  # of one version by now
        for outer in map(ipaddress.ip_network, others)
    )


def check_room(key: Key, others: Iterable[Key], *, made: int, now_unix_s: float) -> None:
    """Let an owner have one more key.

    Raises:
        InvalidRequest: the owner has two that are good, or there are too many.
    """
    active = [one for one in others if one.owner == key.owner and one.is_active(now_unix_s)]
    if len(active) >= ACTIVE_PER_OWNER:
        ids = " and ".join(sorted(one.id for one in active))
        raise InvalidRequest(f"{key.owner} has two keys that are good, {ids}; revoke one first", param="owner")
    if made >= MADE_MAX:
        raise InvalidRequest(f"there are {MADE_MAX} keys already")
