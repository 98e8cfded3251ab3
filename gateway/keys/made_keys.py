"""Keys made and revoked through the API: passed to the other gateways through Redis, kept by each one's cache."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as dataclass_field

from common.clock import Clock
from common.errors import ModelUnavailable
from common.ids import new_incarnation
from common.telemetry.logs import get_logger
from gateway.core.keys.key_records import sealed_key, sealed_tombstone
from gateway.core.keys.keys import Key
from gateway.keys.key_redis import KeyRedis, KeyStoreUnavailableError
from gateway.keys.key_store import KeyStore
from gateway.keys.quota_book import QuotaBook

log = get_logger()

LOOK_EVERY_S = 1.0
# Two gateways that make keys at the same moment: one of them looks again.
_TRIES_MAX = 5
_RETRY_AFTER_S = 5.0


def _away(text: str) -> ModelUnavailable:
    return ModelUnavailable(text, retry_after_s=_RETRY_AFTER_S)


@dataclass(slots=True, kw_only=True)
class MadeKeys:
    """One per gateway that has a file of keys and a Redis."""

    store: KeyStore
    redis: KeyRedis
    book: QuotaBook
    clock: Clock
    _gateway_id: str = dataclass_field(default_factory=new_incarnation)
    _revision: str = ""
    _changing: asyncio.Lock = dataclass_field(default_factory=asyncio.Lock)

    async def watch(self) -> None:
        """Look every second, until cancelled. Redis may be away for as long as it likes."""
        while True:
            try:
                await self.look()
            except KeyStoreUnavailableError:
                pass  # said once, where it was noticed
            except Exception:  # an unexpected record must not end the watch: revocations come this way
                log.exception("keys.watch_bug")
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Take over what is new, and give back what Redis has forgotten.

        Raises:
            KeyStoreUnavailableError: it is away.
        """
        async with self._changing:
            await self._look()

    async def _look(self) -> None:
        used = self.store.take_used()
        try:
            look = await self.redis.look(self._revision, self._gateway_id, used)
        except KeyStoreUnavailableError:
            self.store.put_used_back(used)
            raise
        self.book.gateways = max(look.gateways, 1)
        if look.records is None:
            return
        made, revoked = look.records
        if self.store.learn(made, revoked):
            await self.store.keep()
        lost_made, lost_revoked = self.store.records.missing_in(made, revoked)
        if lost_made or lost_revoked:
            await self.redis.add(lost_made, lost_revoked)
            log.info("keys.given_back", made=len(lost_made), revoked=len(lost_revoked))
        self._revision = look.revision

    async def add(self, key: Key, check: Callable[[], None]) -> None:
        """Make a key known everywhere. `check` is asked with everything in view, and may refuse by raising.

        Raises:
            ModelUnavailable: Redis is away.
        """
        async with self._changing:
            try:
                for _ in range(_TRIES_MAX):
                    self._revision = ""  # everything anew: what is counted must be all there is
                    await self._look()
                    check()
                    sealed = sealed_key(self.store.records.pepper, key)
                    if await self.redis.add({key.id: sealed}, {}, expected=self._revision):
                        self.store.learn({key.id: sealed}, {})
                        await self.store.keep()
                        return
            except KeyStoreUnavailableError as error:
                raise _away("the store of keys cannot be reached") from error
        raise _away("too many keys are made at once")

    async def revoke(self, key: Key) -> None:
        """Put a tombstone in a key's place: here at once, elsewhere within seconds.

        Raises:
            ModelUnavailable: Redis is away; the key is refused here, and by the others once it is back.
        """
        async with self._changing:
            now_unix_s = round(self.clock.wall_unix_s())
            tombstone = sealed_tombstone(self.store.records.pepper, key.id, now_unix_s)
            self.store.learn({}, {key.id: tombstone})
            await self.store.keep()
            try:
                await self.redis.add({}, {key.id: tombstone})
            except KeyStoreUnavailableError as error:
                self._revision = ""  # written when it is back
                raise _away("revoked here; other gateways learn of it when the store of keys is back") from error

    async def last_used(self) -> dict[str, int]:
        """Return the last use of keys over all gateways; with Redis away, as far as this gateway knows."""
        try:
            used = await self.redis.last_used()
        except KeyStoreUnavailableError:
            used = {}
        for key_id in self.store.ring.keys:
            here = self.store.used_unix_s(key_id)
            if here is not None:
                used[key_id] = max(here, used.get(key_id, 0))
        return used
