"""Keys made through the API, as they lie in Redis and in caches: sealed texts in two sets that only grow. Pure.

Records that are never removed can be joined in any order: an empty store forgets nothing that a gateway remembers, and
a tombstone stays. The seal is made with the pepper, so that write access to the store can make no key, widen none and
revoke none.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gateway.core.keys.key_file import key_fields, read_key
from gateway.core.keys.keys import Key

VERSION = 1
# Tombstones included. A million would be a mistake in a script.
MADE_MAX = 10_000
_MADE = "made"
_REVOKED = "revoked"


@dataclass(slots=True)
class KeyRecords:
    """Known records of API-made keys. `refused` has the ids of records with a foreign seal."""

    pepper: bytes = field(repr=False)
    made: dict[str, str] = field(default_factory=dict)  # sealed texts by id
    revoked: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    _keys: dict[str, Key] = field(default_factory=dict)
    _revoked_unix_s: dict[str, int] = field(default_factory=dict)

    def learn(self, made: Mapping[str, str], revoked: Mapping[str, str]) -> bool:
        """Add what is new; True if anything was."""
        before = len(self.made) + len(self.revoked)
        for key_id, text in made.items():
            if key_id not in self.made:
                self._learn_key(key_id, text)
        for key_id, text in revoked.items():
            if key_id not in self.revoked:
                self._learn_tombstone(key_id, text)
        return len(self.made) + len(self.revoked) > before

    def missing_in(self, made: Mapping[str, str], revoked: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the records that another place lacks."""
        return (
            {key_id: text for key_id, text in self.made.items() if key_id not in made},
            {key_id: text for key_id, text in self.revoked.items() if key_id not in revoked},
        )

    def all_keys(self) -> list[Key]:
        """List every key, with its tombstone if it has one."""
        return [
            replace(key, revoked_unix_s=self._revoked_unix_s.get(key_id, key.revoked_unix_s))
            for key_id, key in self._keys.items()
        ]

    def _learn_key(self, key_id: str, text: str) -> None:
        payload = unsealed(self.pepper, _MADE, text)
        if payload is None:
            self.refused.add(key_id)
            return
        try:
            key = read_key(json.loads(payload), key_id)
        except ValueError:  # a newer gateway wrote it; what could mean more than is understood opens nothing
            self.refused.add(key_id)
            return
        if key.id == key_id:
            self.made[key_id] = text
            self._keys[key_id] = key

    def _learn_tombstone(self, key_id: str, text: str) -> None:
        payload = unsealed(self.pepper, _REVOKED, text)
        named, _, when = (payload or "").partition(" ")
        if named != key_id or not when.isdecimal():
            self.refused.add(key_id)
            return
        self.revoked[key_id] = text
        self._revoked_unix_s[key_id] = int(when)


def sealed_key(pepper: bytes, key: Key) -> str:
    """Write the record of a key."""
    return _sealed(pepper, _MADE, json.dumps(key_fields(key), sort_keys=True, separators=(",", ":")))


def sealed_tombstone(pepper: bytes, key_id: str, revoked_unix_s: int) -> str:
    """Write the record of a revoked key."""
    return _sealed(pepper, _REVOKED, f"{key_id} {revoked_unix_s}")


def write_cache(made: Mapping[str, str], revoked: Mapping[str, str]) -> str:
    """Write the text of a cache file."""
    return json.dumps({"version": VERSION, "made": dict(made), "revoked": dict(revoked)}) + "\n"


def read_cache(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Read the records of a cache file; `learn` still has to check them.

    Raises:
        ValueError: it is no cache of keys.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise ValueError(f"no cache of keys of version {VERSION}")
    sets = [data.get("made"), data.get("revoked")]
    if not all(isinstance(one, dict) and all(isinstance(value, str) for value in one.values()) for one in sets):
        raise ValueError("no cache of keys")
    return dict(data["made"]), dict(data["revoked"])


def unsealed(pepper: bytes, kind: str, text: str) -> str | None:
    """Return the sealed content; None if the seal has another pepper or kind."""
    seal, _, payload = text.partition(" ")
    expected = _seal(pepper, kind, payload)
    return payload if hmac.compare_digest(seal.encode(), expected.encode()) else None


def _sealed(pepper: bytes, kind: str, payload: str) -> str:
    return f"{_seal(pepper, kind, payload)} {payload}"


def _seal(pepper: bytes, kind: str, payload: str) -> str:
    # Another message space than that of secrets, which have no zero byte.
    return hmac.new(pepper, f"{kind}\0{payload}".encode(), hashlib.sha256).hexdigest()
