"""The file of keys, as values in and out: JSON that people can read, and that holds no secret. Pure."""

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from common.errors import ModelNotFound
from common.nearest import did_you_mean
from common.spec.bands import Band
from gateway.core.keys.keys import ID_LENGTH, UNLIMITED, Key, Quota, Scope

VERSION = 1
_ID = re.compile(rf"[0-9A-Za-z]{{{ID_LENGTH}}}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[\w.@+-]{1,80}")
_FIELDS = frozenset(
    {"id", "digest", "owner", "tenant", "scopes", "models", "networks", "band", "weight", "created", "expires"}
    | {"revoked", "context_tokens", *asdict(UNLIMITED)}
)
WEIGHT_MAX = 1000
CONTEXT_TOKENS_MIN = 4  # as of the option num_ctx


def write_keys(keys: Iterable[Key]) -> str:
    """Write the text of a file of keys."""
    return json.dumps({"version": VERSION, "keys": [key_fields(key) for key in keys]}, indent=1) + "\n"


def key_fields(key: Key) -> dict[str, Any]:
    """Return the fields of a key as they stand in the file."""
    return {
        "id": key.id,
        "digest": key.digest,
        "owner": key.owner,
        "tenant": key.tenant,
        "scopes": sorted(key.scopes),
        "models": list(key.models),
        "networks": list(key.networks),
        "band": key.band.name.lower(),
        "weight": key.weight,
        **asdict(key.quota),
        "context_tokens": key.context_tokens,
        "created": key.created_unix_s,
        "expires": key.expires_unix_s,
        "revoked": key.revoked_unix_s,
    }


def read_keys(text: str) -> tuple[Key, ...]:
    """Read the keys of a file.

    Raises:
        ValueError: it is no file of keys; the text says where it is wrong.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("version") != VERSION or not isinstance(data.get("keys"), list):
        raise ValueError(f"no file of keys of version {VERSION}")
    keys = tuple(read_key(entry, f"keys[{index}]") for index, entry in enumerate(data["keys"]))
    if len({key.id for key in keys}) < len(keys):
        raise ValueError("an id stands there twice")
    return keys


def read_key(entry: object, place: str) -> Key:
    """Read one key.

    Raises:
        ValueError: a field is missing, unknown or wrong; a key that could mean more than was meant is none.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"{place} is no key")
    if strange := sorted(str(name)[:64] for name in entry if name not in _FIELDS):
        raise ValueError(f'{place}: "{strange[0]}" is no field of a key{did_you_mean(strange[0], _FIELDS)}')
    try:
        return Key(
            id=_text(entry, "id", _ID),
            digest=_text(entry, "digest", _DIGEST),
            owner=_text(entry, "owner", _NAME),
            tenant=_text(entry, "tenant", _NAME),
            scopes=frozenset(Scope(text) for text in _texts(entry, "scopes")),
            models=_texts(entry, "models"),
            networks=_networks(entry),
            band=band_of(entry.get("band", "normal")),
            weight=_number(entry, "weight", highest=WEIGHT_MAX) or 1,
            quota=Quota(**{name: _number(entry, name) for name in asdict(UNLIMITED)}),
            context_tokens=_number(entry, "context_tokens", lowest=CONTEXT_TOKENS_MIN, highest=2**31 - 1),
            created_unix_s=_number(entry, "created", lowest=0) or 0,
            expires_unix_s=_number(entry, "expires", lowest=0),
            revoked_unix_s=_number(entry, "revoked", lowest=0),
        )
    except (ValueError, ModelNotFound) as error:
        raise ValueError(f"{place}: {error}") from error


def band_of(name: object) -> Band:
    """Return a band by its name.

    Raises:
        ValueError: there is no such band.
    """
    for band in Band:
        if name == band.name.lower():
            return band
    raise ValueError(f"band must be {', '.join(band.name.lower() for band in Band)}")


def _text(entry: Mapping[str, Any], name: str, form: re.Pattern[str]) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise ValueError(f"{name} is not valid")
    return value


def _texts(entry: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = entry.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{name} must be a list of texts")
    return tuple(value)


def _networks(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(ipaddress.ip_network(text, strict=False)) for text in _texts(entry, "networks"))


def _number(entry: Mapping[str, Any], name: str, *, lowest: int = 1, highest: int = 2**53) -> int | None:
    value = entry.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise ValueError(f"{name} must be a whole number from {lowest} to {highest}")
    return value
