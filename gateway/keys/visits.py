"""Caller of one request: the key, and the part of its quota that the request takes."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from common.clock import Clock
from gateway.core.dispatch.fairness import SlotClaim
from gateway.core.keys.keys import Key
from gateway.keys.audit import AuditLog
from gateway.keys.quota_book import QuotaUsage


@dataclass(slots=True, kw_only=True)
class Visit:
    """One request. Without a key everything is open to it that is open to strangers."""

    clock: Clock
    key: Key | None = None
    address: str = ""
    audit: AuditLog | None = None
    audited: Mapping[str, object] = field(default_factory=dict)  # caller and decision, for each of its lines
    cache_salt: str = ""  # what runners tell the caller's prompts from others' by; empty: they do not
    usage: QuotaUsage | None = None  # of the key's quota
    is_good: Callable[[], bool] = lambda: True  # False once the key was revoked or has expired; for calls that last

    def note(self, **fields: object) -> None:
        """Write a line of the audit log, if there is one."""
        if self.audit is not None:
            self.audit.note({**self.audited, **fields})

    async def reserve(self, tokens: int) -> None:
        """Take tokens for what the request may come to.

        Raises:
            RateLimited: the key has not so many left.
        """
        if self.usage is not None:
            await self.usage.reserve(tokens)

    def settle(self, used: int) -> None:
        """Settle a request that is over and has used so many tokens."""
        if self.usage is not None:
            self.usage.settle(used)


_current: ContextVar[Visit | None] = ContextVar("visit", default=None)


def begin_visit(visit: Visit) -> None:
    """Begin a visit: from here on, this task and those that it starts work for this request."""
    _current.set(visit)


def current_visit() -> Visit | None:
    """Return the visit that this task works for, or None."""
    return _current.get()


def current_key() -> Key | None:
    """Return the key of the caller; None: everything is open, or no request is worked for."""
    visit = current_visit()
    return None if visit is None else visit.key


def may_use(model: str) -> bool:
    """Return True if the caller, if there is one, may see a model."""
    key = current_key()
    return key is None or key.may_use(model)


def may_use_all() -> bool:
    """Return True if there is no model that the caller may not see."""
    key = current_key()
    return key is None or not key.model_keys


def within_context(asked_tokens: int | None) -> int | None:
    """Limit the requested context to that of the caller's key. None: the replica's own."""
    key = current_key()
    most = key.context_tokens if key is not None else None
    return asked_tokens if most is None else min(asked_tokens or most, most)


def context_max(trained_tokens: int) -> int:
    """Return the longest context that the caller may ask a model for; 0: unknown."""
    return (within_context(trained_tokens) or 0) if trained_tokens else 0


async def reserve(tokens: int) -> None:
    """Take tokens of the caller's quota, if there are a caller and a quota.

    Raises:
        RateLimited: not so many are left.
    """
    if (visit := current_visit()) is not None:
        await visit.reserve(tokens)


def cache_salt() -> str:
    """Return the salt that separates the caller's prompts from others' at runners; empty: none does."""
    visit = current_visit()
    return "" if visit is None else visit.cache_salt


def sender() -> str:
    """Return the tenant of the caller, or its address where there are no keys."""
    visit = current_visit()
    if visit is None:
        return ""
    return visit.address if visit.key is None else visit.key.tenant


def claim(tokens: int) -> SlotClaim:
    """Build the claim for a slot: the caller's tenant, if there is one."""
    key = current_key()
    if key is None:
        return SlotClaim(tokens=tokens)
    return SlotClaim(tenant=key.tenant, band=key.band, weight=key.weight, tokens=tokens)
