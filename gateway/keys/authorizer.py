"""Let callers in or not: keys, scopes, failures and quotas. The one place, for HTTP and gRPC alike."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from common.clock import Clock
from common.errors import Unauthenticated
from gateway.core.keys.keys import Key, Scope, cache_salt, check_scope, presented_key
from gateway.core.keys.quotas import FailedAttempts
from gateway.keys.key_store import KeyStore
from gateway.keys.quota_book import QuotaBook
from gateway.keys.visits import Visit, begin_visit

# Scopes whose requests count against a key's quota; reading state is free.
_COUNTED = frozenset({Scope.INFER, Scope.EMBED})


class Authorizer:
    """Lives on the event loop. Without a store every caller has every scope, with any key."""

    def __init__(self, store: KeyStore | None, clock: Clock, book: QuotaBook, *, shares_cache: bool = False) -> None:
        """Start without visits. `shares_cache`: what a runner holds of one tenant's prompts serves others, too."""
        self._store = store
        self._clock = clock
        self._book = book
        self._shares_cache = shares_cache
        self._failures = FailedAttempts()

    @property
    def asks_for_keys(self) -> bool:
        """False: everything is open."""
        return self._store is not None

    @asynccontextmanager
    async def visit(
        self,
        scope: Scope | None,
        *,
        authorizations: list[str],
        api_keys: list[str],
        address: str,
        request_id: str,
        needs_key: bool = False,
    ) -> AsyncIterator[Visit]:
        """Authorise one request, from its headers to its end. `needs_key`: without a scope any valid key will do.

        Raises:
            Unauthenticated: no key, or none that is good.
            PermissionDenied: the key has not the scope, or comes from elsewhere.
            RateLimited: too many failures of this address, or the key's quota is used up.
        """
        visit = Visit(clock=self._clock)
        store = self._store
        if store is None or (scope is None and not needs_key):
            begin_visit(visit)
            yield visit
            return
        key = self._key(store, authorizations, api_keys, address)
        visit.key = key
        if not self._shares_cache:
            visit.cache_salt = cache_salt(store.ring.pepper, key.tenant)
        visit.is_good = lambda: store.ring.holds(key.id, now_unix_s=self._clock.wall_unix_s())
        check_scope(key, scope, address)
        store.used(key.id, round(self._clock.wall_unix_s()))
        begin_visit(visit)
        if scope not in _COUNTED:
            yield visit
            return
        async with self._book.open(key, request_id) as usage:
            visit.usage = usage
            await usage.enter()
            try:
                yield visit
            finally:
                usage.account.leave()
                visit.settle(0)

    def _key(self, store: KeyStore, authorizations: list[str], api_keys: list[str], address: str) -> Key:
        try:
            text = presented_key(authorizations, api_keys)
            return store.ring.find(text, now_unix_s=self._clock.wall_unix_s())
        except Unauthenticated as error:
            raise self._failures.refusal(error, address, self._clock.now_s()) from None
