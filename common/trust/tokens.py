"""JoinTokens by which machines join: each is good once and for a while. The authority's directory has their hashes."""

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from common.audit.acts import Act
from common.paths import replace_file
from common.startup_error import StartupError
from common.trust.authority import Authority, locked
from common.trust.certificates import BadCertificate, by_fingerprint, issuer_of
from common.trust.identity import CERTIFICATE, read_trusted
from common.trust.roles import Role

TOKEN_LIFE_S = 3600.0
_FILE = "tokens.json"
_TOKENS_MAX = 500
# Expired tokens are kept for so long, so that the error can say that they were good.
_KEPT_S = 24 * 3600.0
_TEXT = re.compile(r"puna1\.([0-9a-f]{64})\.([0-9a-f]{10})\.([0-9A-Za-z_-]{32})")


@dataclass(frozen=True, slots=True)
class Token:
    """`fingerprint` is that of the authority: who has the token knows by it that it speaks to the right cluster."""

    fingerprint: str
    id: str
    secret: str

    def __str__(self) -> str:
        """Return it as people copy it."""
        return f"puna1.{self.fingerprint}.{self.id}.{self.secret}"


def parse_token(text: str) -> Token:
    """Parse a token.

    Raises:
        ValueError: it is none.
    """
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise ValueError("that is no token; `puna up --address` and `puna tokens create` print one: puna1.…")
    return Token(*found.groups())


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """Record of a token. `node`: the only id it is good for; `used_by`, `used_key`: the node that joined with it."""

    id: str
    hash: str
    expires_unix_s: float
    node: str = ""
    used_by: str = ""
    used_key: str = ""

    def admits(self, secret: str) -> bool:
        """Return True if this is the secret."""
        return secrets.compare_digest(self.hash, _hash(secret))


class JoinTokens:
    """The tokens of one authority. Holds no state: commands and discovery change the same file, one at a time."""

    def __init__(self, authority: Authority, *, wall_unix_s: Callable[[], float] = time.time) -> None:
        self._authority = authority
        self._path = authority.directory / _FILE
        self._wall_unix_s = wall_unix_s

    def create(self, *, life_s: float = TOKEN_LIFE_S, node: str = "") -> Token:
        """Make a token; only its hash is kept.

        Raises:
            StartupError: there is no authority, there are too many tokens, or the file cannot be used.
        """
        token = Token(self._fingerprint(), secrets.token_hex(5), secrets.token_urlsafe(24))
        act = self._authority.acts.act(Act.TOKENS_CREATE, object=token.id, node=node, life_s=life_s)
        with act, self.changing() as records:
            if len(records) >= _TOKENS_MAX:
                raise StartupError(f"there are {len(records)} tokens; `puna tokens revoke` some")
            expires_unix_s = self._wall_unix_s() + life_s
            records[token.id] = TokenRecord(
                id=token.id, hash=_hash(token.secret), expires_unix_s=expires_unix_s, node=node
            )
        return token

    def revoke(self, token_id: str) -> bool:
        """Remove a token; False if there is none of this id.

        Raises:
            StartupError: as `create`.
        """
        if token_id not in self._read():
            return False
        with self._authority.acts.act(Act.TOKENS_REVOKE, object=token_id), self.changing() as records:
            return records.pop(token_id, None) is not None

    def usable(self) -> list[TokenRecord]:
        """List the tokens that a machine can still join with.

        Raises:
            StartupError: as `create`.
        """
        now_unix_s = self._wall_unix_s()
        known = self._read().values()
        return [one for one in known if not one.used_by and one.expires_unix_s > now_unix_s]

    @contextmanager
    def changing(self) -> Iterator[dict[str, TokenRecord]]:
        """Yield the records by id, and write them when the block ends without an error. Other processes wait.

        Raises:
            StartupError: as `create`.
        """
        self._authority.authorities()  # only beside one
        with locked(self._path.parent):
            records = self._read()
            yield records
            oldest_unix_s = self._wall_unix_s() - _KEPT_S
            kept = [asdict(one) for one in records.values() if one.expires_unix_s > oldest_unix_s]
            try:
                replace_file(self._path, json.dumps(kept, indent=1).encode())
            except OSError as error:
                raise StartupError(f"{self._path}: {error.strerror}") from error

    def _read(self) -> dict[str, TokenRecord]:
        try:
            return {one["id"]: TokenRecord(**one) for one in json.loads(read_trusted(self._path, secret=True))}
        except FileNotFoundError:
            return {}
        except (OSError, BadCertificate, ValueError, TypeError, KeyError) as error:
            raise StartupError(f"{self._path} cannot be used ({error}); remove it, and create tokens again") from error

    def _fingerprint(self) -> str:
        """Return that of the authority that discovery's certificate is of: after a rotation it may be the older one."""
        authorities = self._authority.authorities()
        shown = self._authority.directory / Role.DISCOVERY / CERTIFICATE
        try:
            issuer = issuer_of(read_trusted(shown), authorities) if shown.exists() else None
            return next(iter(by_fingerprint(issuer or authorities)))
        except (OSError, BadCertificate) as error:
            raise StartupError(f"{shown}: {error}") from error


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
