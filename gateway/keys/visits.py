"""Who is calling, for as long as one request takes: the key, and what the request takes of its quota."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from common.clock import Clock
from gateway.core.dispatch.fairness import Claim
from gateway.core.keys.keys import Key, Scope
from gateway.keys.quota_book import Usage


@dataclass(slots=True, kw_only=True)
class Visit:
    """One request. Without a key everything is open to it that is open to strangers."""

    clock: Clock
    key: Key | None = None
    cache_salt: str = ""  # what runners tell the caller's prompts from others' by; empty: they do not
    usage: Usage | None = None  # of the key's quota
    is_good: Callable[[], bool] = lambda: True  # False once the key was revoked or has expired; for calls that last

    def may(self, scope: Scope, *, stranger: bool) -> bool:
        """True if a part of the request that needs a scope counts; `stranger`: what holds without keys."""
        return scope in self.key.scopes if self.key else stranger

    def may_use(self, model: str) -> bool:
        """True if the model exists as far as this caller is concerned."""
        return self.key is None or self.key.may_use(model)

    async def reserve(self, tokens: int) -> None:
        """Take tokens for what the request may come to.

        Raises:
            RateLimited: the key has not so many left.
        """
        if self.usage is not None:
            await self.usage.reserve(tokens)

    def settle(self, used: int) -> None:
        """The request is over and has used so many tokens."""
        if self.usage is not None:
            self.usage.settle(used)


_current: ContextVar[Visit | None] = ContextVar("visit", default=None)


def begin_visit(visit: Visit) -> None:
    """From here on, this task and those that it starts work for this request."""
    _current.set(visit)


def current_visit() -> Visit | None:
    """Who this task works for; None: nobody."""
    return _current.get()


def may_use(model: str) -> bool:
    """True if the caller, if there is one, may see a model."""
    visit = current_visit()
    return visit is None or visit.may_use(model)


def may_use_all() -> bool:
    """True if there is no model that the caller may not see."""
    visit = current_visit()
    return visit is None or visit.key is None or not visit.key.model_keys


def within_context(asked_tokens: int | None) -> int | None:
    """A context that a request asks for, no longer than the caller's key allows. None: the replica's own."""
    visit = current_visit()
    most = visit.key.context_tokens if visit is not None and visit.key is not None else None
    return asked_tokens if most is None else min(asked_tokens or most, most)


async def reserve(tokens: int) -> None:
    """Take tokens of the caller's quota, if there are a caller and a quota.

    Raises:
        RateLimited: not so many are left.
    """
    if (visit := current_visit()) is not None:
        await visit.reserve(tokens)


def cache_salt() -> str:
    """What runners tell the caller's prompts from others' by; empty: they do not."""
    visit = current_visit()
    return "" if visit is None else visit.cache_salt


def claim(tokens: int) -> Claim:
    """For whom a slot is wanted: the caller's tenant, if there is one."""
    visit = current_visit()
    if visit is None or visit.key is None:
        return Claim(tokens=tokens)
    key = visit.key
    return Claim(tenant=key.tenant, band=key.band, weight=key.weight, tokens=tokens)
