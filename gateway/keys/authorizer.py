"""Let callers in or not: keys, scopes, failures and quotas. The one place, for HTTP and gRPC alike."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from common.clock import Clock
from common.errors import PunaError, Unauthenticated
from common.rate_limits import FailedAttempts
from gateway.core.keys.keys import Key, Scope, cache_salt, check_scope, presented_key
from gateway.keys.audit import AuditLog, is_administrative, without_secret
from gateway.keys.key_store import KeyStore
from gateway.keys.quota_book import QuotaBook
from gateway.keys.visits import Visit, begin_visit

# Scopes whose requests count against a key's quota; reading state is free.
_COUNTED = frozenset({Scope.INFER, Scope.EMBED})


class Authorizer:
    """Lives on the event loop. Without a store every caller has every scope, with any key."""

    def __init__(
        self,
        store: KeyStore | None,
        clock: Clock,
        book: QuotaBook,
        *,
        shares_cache: bool = False,
        audit: AuditLog | None = None,
        fence: Callable[[], int] = lambda: 0,
    ) -> None:
        """Start without visits. `shares_cache`: what a runner holds of one tenant's prompts serves others, too.

        `fence` returns that of the leading scheduler, for the lines of administrative acts.
        """
        self._store = store
        self._clock = clock
        self._book = book
        self._shares_cache = shares_cache
        self._audit = audit
        self._fence = fence
        self._failures = FailedAttempts()

    @property
    def asks_for_keys(self) -> bool:
        """False: everything is open."""
        return self._store is not None

    def tenant_of(self, authorizations: list[str], api_keys: list[str], address: str) -> str | None:
        """Return the tenant of a caller whose request is not read yet, its address without keys; None: no valid key."""
        if self._store is None:
            return address
        try:
            text = presented_key(authorizations, api_keys)
            return self._store.ring.find(text, now_unix_s=self._clock.wall_unix_s()).tenant
        except Unauthenticated:
            return None

    @asynccontextmanager
    async def visit(
        self,
        scope: Scope | None,
        *,
        authorizations: list[str],
        api_keys: list[str],
        address: str,
        request_id: str,
        act: str,
        named: str = "",
        needs_key: bool = False,
    ) -> AsyncIterator[Visit]:
        """Authorise one request, from its headers to its end. `needs_key`: without a scope any valid key will do.

        `act` is method and route, `named` what the caller names in it: a model, node or key; for the audit log.

        Raises:
            Unauthenticated: no key, or none that is good.
            PermissionDenied: the key has not the scope, or comes from elsewhere.
            RateLimited: too many failures of this address, or the key's quota is used up.
            AuditUnavailable: an administrative act cannot be logged.
        """
        asks: dict[str, object] = {"request_id": request_id, "address": address, "act": act, "scope": scope}
        asks["object"] = without_secret(named)
        visit = Visit(clock=self._clock, address=address, audit=self._audit, audited=asks)
        try:
            self._admit(visit, scope, authorizations, api_keys, address=address, needs_key=needs_key)
        except PunaError as error:
            visit.note(decision="denied", rule=error.reason, key=visit.key.id if visit.key is not None else None)
            raise
        key = visit.key
        if is_administrative(scope, act):
            asks["fence"] = self._fence() or None
        visit.audited = asks if key is None else {**asks, "key": key.id, "tenant": key.tenant}
        if self._audit is not None and is_administrative(scope, act):
            await self._audit.require({**visit.audited, "decision": "allowed", "rule": scope})
        begin_visit(visit)
        if key is None or scope not in _COUNTED:
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

    def _admit(
        self,
        visit: Visit,
        scope: Scope | None,
        authorizations: list[str],
        api_keys: list[str],
        *,
        address: str,
        needs_key: bool,
    ) -> None:
        """Find the key of a visit, if one is needed, and check its rights."""
        store = self._store
        if store is None or (scope is None and not needs_key):
            return
        key = visit.key = self._key(store, authorizations, api_keys, address)
        visit.cache_salt = self.salt_of(key.tenant)
        visit.is_good = lambda: store.ring.holds(key.id, now_unix_s=self._clock.wall_unix_s())
        check_scope(key, scope, address)
        store.used(key.id, round(self._clock.wall_unix_s()))

    def salt_of(self, tenant: str) -> str:
        """Return the salt of a tenant's prompts; empty where all share them."""
        if self._store is None or self._shares_cache:
            return ""
        return cache_salt(self._store.ring.pepper, tenant)

    def _key(self, store: KeyStore, authorizations: list[str], api_keys: list[str], address: str) -> Key:
        try:
            text = presented_key(authorizations, api_keys)
            return store.ring.find(text, now_unix_s=self._clock.wall_unix_s())
        except Unauthenticated as error:
            raise self._failures.refusal(error, address, self._clock.now_s()) from None
