"""Keys, quotas and shares in Redis: the one module of the gateway that speaks to it.

Every command has a deadline. After a failure nothing but `look`, which comes every second, tries again: requests do not
wait for a store that is away.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.exceptions import NoPermissionError

from common.errors import StartupError
from common.redis.client import UNREACHED, answer_within, check_of, open_redis
from common.telemetry.logs import get_logger
from gateway import metrics
from gateway.keys import key_scripts as scripts

log = get_logger()

COMMAND_TIMEOUT_S = 0.5
# A gateway that was not heard for so long is none any more, as far as shares of quotas go.
GATEWAY_SILENCE_S = 10.0
# After this the report of a gateway's shares is stale: several were due since.
SHARES_SILENCE_S = 2.0
# The place of a request whose gateway died is free after this.
LEASE_S = 60.0
_CONNECTIONS_MAX = 32
_MS = 1000

Result = TypeVar("Result")


class KeyStoreUnavailableError(Exception):
    """Redis did not answer. The caller's move: go on with what is here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """An answer of Redis. `records` are those of keys made and revoked, still to be checked; None: nothing changed."""

    revision: str
    gateways: int
    records: tuple[dict[str, str], dict[str, str]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBucket:
    """One limit of a key, and what is wanted of it."""

    name: str
    limit: int
    period_s: float
    amount: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaResult:
    """Result of taking from a quota. `short` names the exhausted limits; empty: it was taken."""

    short: str
    wait_s: float
    full_in_s: tuple[float, ...]  # of each bucket


class KeyRedis:
    """Lives on the event loop. Every method raises `KeyStoreUnavailableError`."""

    def __init__(self, url: str, *, any_version: bool = False) -> None:
        """Connect at the first use. `any_version`: use also a server with a known hole; else it counts as away.

        Raises:
            StartupError: the URL is none.
        """
        options: Any = {"timeout_s": COMMAND_TIMEOUT_S, "connections_max": _CONNECTIONS_MAX}
        try:
            self._redis: Any = open_redis(url, **options, check=check_of(url, any_version=any_version))
        except ValueError as error:
            raise StartupError(f"PUNA_REDIS_URL: {error}") from error
        self._scripts = {
            text: self._redis.register_script(text)
            for text in (scripts.LOOK, scripts.ADD, scripts.TAKE, scripts.SETTLE, scripts.RENEW, scripts.SHARE)
        }
        metrics.show_key_store()
        self._is(up=False)

    async def look(self, revision: str, gateway_id: str, used: Mapping[str, int]) -> Look:
        """Say that this gateway is there; get what is new. Also finds out whether Redis is back."""
        keys = [scripts.REVISION, scripts.MADE, scripts.REVOKED, scripts.GATEWAYS, scripts.USED]
        arguments: list[Any] = [revision, gateway_id, round(GATEWAY_SILENCE_S * _MS)]
        arguments += [part for pair in used.items() for part in pair]
        answer = await self._run(scripts.LOOK, keys, arguments, probing=True)
        records = (_pairs(answer[2]), _pairs(answer[3])) if len(answer) > 2 else None
        return Look(revision=answer[0], gateways=int(answer[1]), records=records)

    async def add(self, made: Mapping[str, str], revoked: Mapping[str, str], *, expected: str | None = None) -> bool:
        """Add records. `expected`: only while this is the revision; False if it is not."""
        keys = [scripts.REVISION, scripts.MADE, scripts.REVOKED]
        arguments: list[Any] = ["*" if expected is None else expected, secrets.token_hex(8), len(made)]
        arguments += [part for records in (made, revoked) for pair in records.items() for part in pair]
        return bool(await self._run(scripts.ADD, keys, arguments))

    async def last_used(self) -> dict[str, int]:
        """Return the last use of each key, over all gateways."""
        answer: dict[str, str] = await self._ask(lambda: self._redis.hgetall(scripts.USED))
        return {key_id: int(when) for key_id, when in answer.items()}

    async def take(
        self, key_id: str, request_id: str, concurrency: int, buckets: Sequence[SharedBucket]
    ) -> QuotaResult:
        """Take of a key's quota: everything, or nothing. `concurrency` 0: the place is not asked for."""
        arguments: list[Any] = [request_id, round(LEASE_S * _MS), concurrency]
        for one in buckets:
            arguments += [one.name, one.limit, round(one.period_s * _MS), one.amount]
        short, wait_ms, left_ms = await self._run(scripts.TAKE, scripts.quota_keys(key_id, request_id), arguments)
        return QuotaResult(
            short=short, wait_s=float(wait_ms) / _MS, full_in_s=tuple(max(float(one), 0.0) / _MS for one in left_ms)
        )

    async def settle(self, key_id: str, request_id: str, used: int, buckets: Sequence[SharedBucket]) -> None:
        """Settle a request that is over and has used so many tokens."""
        arguments: list[Any] = [request_id, used]
        for one in buckets:
            arguments += [one.name, one.limit, round(one.period_s * _MS)]
        await self._run(scripts.SETTLE, scripts.quota_keys(key_id, request_id), arguments)

    async def renew(self, key_id: str, request_ids: Sequence[str]) -> None:
        """Renew the leases of running requests."""
        arguments = [round(LEASE_S * _MS), *request_ids]
        await self._run(scripts.RENEW, scripts.quota_keys(key_id, ""), arguments)

    async def exchange_shares(self, gateway_id: str, report: str) -> dict[str, str]:
        """Write this gateway's report of shares; return those of the others."""
        arguments: list[Any] = [gateway_id, round(SHARES_SILENCE_S * _MS), report]
        share = self._scripts[scripts.SHARE]
        return _pairs(await self._ask(lambda: share(keys=[scripts.SHARES], args=arguments), spares_others=True))

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    async def _run(self, script: str, keys: list[str], arguments: Sequence[Any], *, probing: bool = False) -> Any:
        return await self._ask(lambda: self._scripts[script](keys=keys, args=arguments), probing=probing)

    async def _ask(
        self, command: Callable[[], Awaitable[Result]], *, probing: bool = False, spares_others: bool = False
    ) -> Result:
        """Run a command. `spares_others`: if Redis does not permit it, as with rules of an earlier build, it is up."""
        if not self.is_up and not probing:
            raise KeyStoreUnavailableError("Redis is away")
        try:
            answer = await answer_within(command, COMMAND_TIMEOUT_S * (2 if probing else 1))
        except UNREACHED as error:
            if spares_others and isinstance(error, NoPermissionError):
                raise KeyStoreUnavailableError(str(error)) from error
            if self.is_up:
                log.warning("keys.store_away", reason=str(error) or type(error).__name__)
            self._is(up=False)
            raise KeyStoreUnavailableError("Redis is away") from error
        if not self.is_up:
            log.info("keys.store_reached")
        self._is(up=True)
        return answer

    def _is(self, *, up: bool) -> None:
        self.is_up = up
        metrics.KEY_STORE_UP.set(up)


def _pairs(flat: Sequence[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
