"""/puna/v1/keys: make, list and revoke API keys."""

from functools import partial
from typing import Annotated, Any

from pydantic import Field

from common.clock import MS_PER_S
from common.durations import parse_go_duration_ms
from common.errors import InvalidRequest, KeyNotFound, NotSupported
from common.ids import random_id
from gateway.core.keys.key_file import CONTEXT_TOKENS_MIN, WEIGHT_MAX, key_fields, read_key
from gateway.core.keys.key_rules import check_gift, check_room, may_see
from gateway.core.keys.keys import ID_LENGTH, SECRET_LENGTH, Key, Scope, digest_of, key_text
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import Between, OwnBody, validated
from gateway.http.endpoint.response_model import ResponseModel
from gateway.http.endpoint.route_errors import OF_MADE_KEYS
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Endpoints, Service
from gateway.keys.made_keys import MadeKeys
from gateway.keys.visits import current_visit

_WHOLE = Between(1, 2**53, whole=True)
_LONGEST_MS = 100 * 365 * 86_400 * MS_PER_S


class KeyBody(OwnBody):
    """A key that is to be made (POST /puna/v1/keys)."""

    owner: str = Field(description="Owner of the key; one has at most two valid keys")
    tenant: str | None = Field(default=None, description="Tenant that shares slots with others; unset: the owner")
    scopes: list[str] = Field(
        default_factory=lambda: ["infer", "embed", "models:read"],
        max_length=16,
        description="infer, embed, models:read, models:write, metrics, admin:keys, admin:cluster",
    )
    models: list[str] = Field(default_factory=list, max_length=256, description="Only these; none: every model")
    networks: list[str] = Field(default_factory=list, max_length=64, description="Only from there; none: everywhere")
    band: str = Field(default="normal", description="Priority: high, normal or low")
    weight: Annotated[int, Between(1, WEIGHT_MAX, whole=True)] = 1
    requests_per_minute: Annotated[int, _WHOLE] | None = None
    tokens_per_minute: Annotated[int, _WHOLE] | None = None
    tokens_per_day: Annotated[int, _WHOLE] | None = None
    concurrency: Annotated[int, _WHOLE] | None = None
    context_tokens: Annotated[int, Between(CONTEXT_TOKENS_MIN, 2**31 - 1, whole=True)] | None = Field(
        default=None, description="Longest context of a request; unset: the replica's"
    )
    expires: str | None = Field(default=None, description='How long it is good, as in "720h"; unset: for ever')


class KeyObject(ResponseModel):
    """A key as it is shown. Its text comes once, from POST."""

    key: str | None = Field(default=None, description="The key itself; only in the answer that made it")
    id: str
    owner: str
    tenant: str
    scopes: list[str]
    models: list[str]
    networks: list[str]
    band: str
    weight: int
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrency: int | None = None
    context_tokens: int | None = None
    created: int = Field(description="Seconds since 1970")
    expires: int | None = None
    revoked: int | None = None
    last_used: int | None = None
    state: str = Field(description="active, expired or revoked")
    source: str = Field(description="file, or api if it was made here")


class KeyList(ResponseModel):
    """Every key that the caller may see (GET /puna/v1/keys)."""

    keys: list[KeyObject]


class Keys(Endpoints):
    """For operators."""

    async def list_all(self, exchange: Exchange) -> None:
        """GET /puna/v1/keys: every key that the caller may see, oldest first."""
        made, who = self._ready()
        used = await made.last_used()
        keys = [self._shown(key, used) for key in made.store.all_keys() if may_see(who, key)]
        await exchange.respond_json({"keys": keys})

    async def get(self, exchange: Exchange) -> None:
        """GET /puna/v1/keys/{id}."""
        made, who = self._ready()
        key = self._found(who, exchange.path_value)
        await exchange.respond_json(self._shown(key, await made.last_used()))

    async def create(self, exchange: Exchange) -> None:
        """POST /puna/v1/keys: make a key; its text is in this answer and nowhere else."""
        made, who = self._ready()
        body = validated(KeyBody, await exchange.json())
        key_id, secret = random_id("", ID_LENGTH), random_id("", SECRET_LENGTH)
        now_unix_s = int(made.clock.wall_unix_s())
        key = _new_key(body, key_id, digest_of(made.store.records.pepper, secret), now_unix_s)
        check_gift(who, key)

        def check() -> None:
            check_room(key, made.store.all_keys(), made=len(made.store.records.made), now_unix_s=now_unix_s)

        exchange.record.changes |= {"object": key.id, "owner": key.owner, "scopes": sorted(map(str, key.scopes))}
        await made.add(key, check)
        exchange.headers_out["cache-control"] = "no-store"
        await exchange.respond_json({"key": key_text(key_id, secret), **self._shown(key, {})})

    async def revoke(self, exchange: Exchange) -> None:
        """DELETE /puna/v1/keys/{id}: refuse it from now on. It stays as a tombstone."""
        made, who = self._ready()
        key = self._found(who, exchange.path_value)
        if made.store.is_in_file(key.id):
            raise InvalidRequest("this key stands in the file of keys: revoke it there (`puna keys revoke`)")
        if key.revoked_unix_s is None:
            await made.revoke(key)
            key = self._found(who, key.id)
        await exchange.respond_json(self._shown(key, await made.last_used()))

    def _ready(self) -> tuple[MadeKeys, Key]:
        made = self.service.made_keys
        if made is None:
            raise NotSupported("this gateway makes no keys: that needs PUNA_API_KEYS_FILE and PUNA_REDIS_URL")
        visit = current_visit()
        assert visit is not None  # a gateway with a file of keys refuses requests without one
        assert visit.key is not None
        return made, visit.key

    def _found(self, who: Key, key_id: str) -> Key:
        made, _ = self._ready()
        key = made.store.ring.keys.get(key_id)
        if key is None or not may_see(who, key):
            raise KeyNotFound("there is no such key")
        return key

    def _shown(self, key: Key, used: dict[str, int]) -> dict[str, Any]:
        made, _ = self._ready()
        now_unix_s = made.clock.wall_unix_s()
        state = "revoked" if key.revoked_unix_s is not None else "active" if key.is_active(now_unix_s) else "expired"
        source = "file" if made.store.is_in_file(key.id) else "api"
        shown = key_fields(key) | {"last_used": used.get(key.id), "state": state, "source": source}
        del shown["digest"]  # of its secret
        return shown


def _new_key(body: KeyBody, key_id: str, digest: str, now_unix_s: int) -> Key:
    fields = body.model_dump() | {"id": key_id, "digest": digest, "created": now_unix_s}
    fields["tenant"] = body.tenant or body.owner
    fields["expires"] = None if body.expires is None else now_unix_s + _seconds(body.expires)
    try:
        return read_key(fields, "the key")
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


def _seconds(text: str) -> int:
    try:
        duration_ms = parse_go_duration_ms(text)
    except ValueError as error:
        raise InvalidRequest(f"expires: {error}", param="expires") from error
    if not MS_PER_S <= duration_ms <= _LONGEST_MS:
        raise InvalidRequest("expires must be between a second and a hundred years", param="expires")
    return duration_ms // MS_PER_S


def key_routes(service: Service) -> list[Route]:
    """List the routes of keys."""
    keys = Keys(service)
    several, one = "/puna/v1/keys", "/puna/v1/keys/{id}"
    route = partial(Route, scope=Scope.ADMIN_KEYS, errors=OF_MADE_KEYS)
    return [
        route("GET", several, keys.list_all, "API keys", response=KeyList),
        route("POST", several, keys.create, "Make an API key", body=KeyBody, response=KeyObject),
        route("GET", one, keys.get, "One API key", response=KeyObject),
        route("DELETE", one, keys.revoke, "Revoke an API key", response=KeyObject),
    ]
