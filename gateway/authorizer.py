"""Let callers in or not: keys, scopes, failures and quotas. The one place, for HTTP and gRPC alike."""

from collections.abc import Iterator
from contextlib import contextmanager

from common.clock import Clock
from common.errors import Unauthenticated
from gateway.core.failures import Failures
from gateway.core.keys import Key, Scope, check_scope, presented_key
from gateway.core.quotas import Account
from gateway.key_store import KeyStore
from gateway.visits import Visit, begin_visit

# What is counted against a key's requests; looking around is free.
_COUNTED = frozenset({Scope.INFER, Scope.EMBED})


class Authorizer:
    """Lives on the event loop. Without a store everybody may do everything, whatever key they send."""

    def __init__(self, store: KeyStore | None, clock: Clock) -> None:
        """Nobody has been here yet."""
        self._store = store
        self._clock = clock
        self._failures = Failures()
        self._accounts: dict[str, Account] = {}

    @property
    def asks_for_keys(self) -> bool:
        """False: everything is open."""
        return self._store is not None

    @contextmanager
    def visit(
        self, scope: Scope | None, *, authorizations: list[str], api_keys: list[str], address: str
    ) -> Iterator[Visit]:
        """One request, from its headers to its end.

        Raises:
            Unauthenticated: no key, or none that is good.
            PermissionDenied: the key has not the scope, or comes from elsewhere.
            RateLimited: too many failures of this address, or the key's quota is used up.
        """
        visit = Visit(clock=self._clock)
        if scope is None or self._store is None:
            begin_visit(visit)
            yield visit
            return
        visit.key = self._key(self._store, authorizations, api_keys, address)
        check_scope(visit.key, scope, address)
        begin_visit(visit)
        if scope not in _COUNTED:
            yield visit
            return
        visit.account = self._account(visit.key)
        visit.account.enter(self._clock.now_s())
        try:
            yield visit
        finally:
            visit.account.leave()
            visit.settle(0)

    def _key(self, store: KeyStore, authorizations: list[str], api_keys: list[str], address: str) -> Key:
        try:
            text = presented_key(authorizations, api_keys)
            return store.ring.find(text, now_unix_s=self._clock.wall_unix_s())
        except Unauthenticated as error:
            raise self._failures.refusal(error, address, self._clock.now_s()) from None

    def _account(self, key: Key) -> Account:
        account = self._accounts.setdefault(key.id, Account(key.quota))
        if account.quota != key.quota:
            account.change_quota(key.quota)
        return account
