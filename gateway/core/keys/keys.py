"""API keys: how one is written, what is kept of it, and what it may do. Pure.

A key is `puna_<id>_<secret>_<check>`: scanners recognise it, and a typing error shows without a look-up. Only
HMAC-SHA-256(pepper, secret) is kept; 256 random bits need no slow hash.
"""

import hashlib
import hmac
import ipaddress
import re
import string
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from common.errors import ModelNotFound, PermissionDenied, Unauthenticated
from common.spec.bands import Band
from gateway.core.request.model_names import parse_model_name

BASE62 = string.digits + string.ascii_letters
ID_LENGTH = 8
SECRET_LENGTH = 43
_CHECK_LENGTH = 6
_FORM = re.compile(
    rf"puna_([0-9A-Za-z]{{{ID_LENGTH}}})_([0-9A-Za-z]{{{SECRET_LENGTH}}})_([0-9A-Za-z]{{{_CHECK_LENGTH}}})"
)
# One text for every fault of a key: it must not reveal which part was right.
_INVALID = "Incorrect API key provided"  # as OpenAI begins it: LiteLLM knows a 401 from this text only
# Bytes of a cache salt. No two tenants with the same one can be found.
_SALT_BYTES = 16
# Compared where no key has the id, so that the answer takes as long.
_NO_DIGEST = "0" * 64


class Scope(StrEnum):
    """Right of a key."""

    INFER = "infer"
    EMBED = "embed"
    MODELS_READ = "models:read"
    MODELS_WRITE = "models:write"
    METRICS = "metrics"
    ADMIN_KEYS = "admin:keys"
    ADMIN_CLUSTER = "admin:cluster"


ALL_SCOPES = frozenset(Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Limits of a key. None: unlimited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    tokens_per_day: int | None = None

    @property
    def limits(self) -> dict[str, int]:
        """The limits of the buckets that are set: of requests and tokens a minute, and of tokens a day."""
        found = {"requests": self.requests_per_minute, "tokens": self.tokens_per_minute, "day": self.tokens_per_day}
        return {name: limit for name, limit in found.items() if limit is not None}


UNLIMITED = Quota()


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Stored form of a key."""

    id: str
    digest: str  # hexadecimal HMAC of the secret
    owner: str
    tenant: str
    scopes: frozenset[Scope]
    models: tuple[str, ...] = ()  # empty: every model
    networks: tuple[str, ...] = ()  # empty: from everywhere
    band: Band = Band.NORMAL
    weight: int = 1  # of its tenant's share beside other tenants
    quota: Quota = UNLIMITED
    context_tokens: int | None = None  # longest context of a request; None: the replica's
    created_unix_s: int = 0
    expires_unix_s: int | None = None
    revoked_unix_s: int | None = None  # a revoked key stays as a tombstone
    model_keys: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_keys", frozenset(parse_model_name(name).key for name in self.models))

    def is_active(self, now_unix_s: float) -> bool:
        """Return True if the key is valid."""
        return self.revoked_unix_s is None and (self.expires_unix_s is None or now_unix_s < self.expires_unix_s)

    def may_use(self, model: str) -> bool:
        """Return True if the key may see a model at all, by any spelling of its name."""
        if not self.model_keys:
            return True
        try:
            return parse_model_name(model).key in self.model_keys
        except ModelNotFound:
            return False

    def may_come_from(self, address: str) -> bool:
        """Return True if the address lies in one of its networks."""
        if not self.networks:
            return True
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        ip = getattr(ip, "ipv4_mapped", None) or ip
        return any(ip in ipaddress.ip_network(network, strict=False) for network in self.networks)


@dataclass(frozen=True, slots=True)
class KeyParts:
    """A well-formed key."""

    id: str
    secret: str = field(repr=False)


def key_text(key_id: str, secret: str) -> str:
    """Write a key as its owner gets it."""
    return f"puna_{key_id}_{secret}_{_check(key_id, secret)}"


def parse_key(text: str) -> KeyParts | None:
    """Split a key into its parts; None if it is none, or mistyped."""
    match = _FORM.fullmatch(text)
    if match is None or match[3] != _check(match[1], match[2]):
        return None
    return KeyParts(match[1], match[2])


def digest_of(pepper: bytes, secret: str) -> str:
    """Return the stored digest of a secret."""
    return hmac.new(pepper, secret.encode(), hashlib.sha256).hexdigest()


def _check(key_id: str, secret: str) -> str:
    value, letters = zlib.crc32(f"{key_id}_{secret}".encode()), ""
    for _ in range(_CHECK_LENGTH):
        value, digit = divmod(value, len(BASE62))
        letters = BASE62[digit] + letters
    return letters


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Every key that this gateway knows, tombstones included."""

    pepper: bytes = field(repr=False)
    keys: Mapping[str, Key]

    @classmethod
    def of(cls, pepper: bytes, keys: Iterable[Key]) -> "KeyRing":
        """Build a ring of keys by their ids."""
        return cls(pepper, MappingProxyType({key.id: key for key in keys}))

    def holds(self, key_id: str, *, now_unix_s: float) -> bool:
        """Return True while a key that was found before is still good."""
        key = self.keys.get(key_id)
        return key is not None and key.is_active(now_unix_s)

    def find(self, text: str, *, now_unix_s: float) -> Key:
        """Find the key of a text.

        Raises:
            Unauthenticated: not well formed, unknown, revoked or expired.
        """
        parts = parse_key(text)
        if parts is None:
            raise Unauthenticated(_INVALID)
        key = self.keys.get(parts.id)
        is_right = hmac.compare_digest(digest_of(self.pepper, parts.secret), key.digest if key else _NO_DIGEST)
        if key is None or not is_right or not key.is_active(now_unix_s):
            raise Unauthenticated(_INVALID)
        return key


def presented_key(authorizations: list[str], api_keys: list[str]) -> str:
    """Return the one key that a request carries in `Authorization: Bearer` or `x-api-key`.

    Raises:
        Unauthenticated: none, a header twice, another scheme, or two keys that differ.
    """
    if len(authorizations) > 1 or len(api_keys) > 1:
        raise Unauthenticated("send one API key, once")
    found = [text.strip() for text in api_keys]
    for header in authorizations:
        scheme, _, text = header.strip().partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise Unauthenticated("Authorization must be Bearer and an API key")
        found.append(text.strip())
    if not found or len(set(found)) > 1:
        raise Unauthenticated("send one API key, once" if found else "an API key is required")
    return found[0]


def check_scope(key: Key, scope: Scope | None, address: str) -> None:
    """Let a key do what needs a scope; None: what any key may do.

    Raises:
        PermissionDenied: it has not the scope, or comes from elsewhere.
    """
    if not key.may_come_from(address):
        raise PermissionDenied("this API key may not be used from this address")
    if scope is not None and scope not in key.scopes:
        raise PermissionDenied(f"this API key lacks the scope {scope}")


def cache_salt(pepper: bytes, tenant: str) -> str:
    """Return the salt that separates a tenant's cached prompts from those of others, in hexadecimal digits.

    The time of an answer reveals a cached prompt, so a runner reuses it for requests of one salt only. The salt of
    another tenant cannot be forged: it takes the pepper of the keys, which all gateways have and no runner.
    """
    # Another message space than those of secrets and records: neither begins so.
    return hmac.new(pepper, f"cache\0{tenant}".encode(), hashlib.sha256).digest()[:_SALT_BYTES].hex()
