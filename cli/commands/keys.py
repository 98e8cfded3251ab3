"""`puna keys`: the file of API keys that gateways read, or the keys that a gateway keeps itself (`--api`)."""

import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cli.cluster.home import real_home
from cli.errors import CommandFailed, ExitCode
from cli.output import print_answer, print_listing
from cli.server import Server
from cli.settings import CliSettings, acts_in
from common.audit.acts import Act
from common.durations import parse_go_duration_ms
from common.ids import random_id
from common.paths import replace_file
from gateway.core.keys.key_file import key_fields, read_key, read_keys, write_keys
from gateway.core.keys.key_rules import ACTIVE_PER_OWNER
from gateway.core.keys.keys import ID_LENGTH, SECRET_LENGTH, Key, Scope, digest_of, key_text
from gateway.keys.key_store import PEPPER_BYTES, pepper_path, read_private

_FILE_NAME = "keys.json"
_PATH = "/puna/v1/keys"
_LIMITS = {
    "requests_per_minute": "rpm",
    "tokens_per_minute": "tpm",
    "concurrency": "at once",
    "tokens_per_day": "tokens a day",
    "context_tokens": "tokens of context",
}
_HEADINGS = ("ID", "OWNER", "TENANT", "SCOPES", "MODELS", "BAND", "LIMITS", "EXPIRES", "STATE")

Json = dict[str, Any]


def create(options: Json, file: Path | None, *, via_api: bool = False, as_json: bool) -> None:
    """Make a key; its text is printed and kept nowhere. `options`: as a gateway takes them, those that are set."""
    made, place = _made_at_gateway(options) if via_api else _made_in_file(options, _path(file))
    text = f"{made['key']}\nkept {place} as {made['id']}; the key itself is shown this once"
    print_answer(made, text, as_json=as_json)


def show_all(file: Path | None, *, via_api: bool = False, as_json: bool) -> None:
    """Print every key; a gateway knows those of its file, too."""
    keys = Server.of().get(_PATH)["keys"] if via_api else [_shown(key) for key in _read(_path(file))]
    _print({"keys": keys}, keys, via_api=via_api, as_json=as_json)


def show(key_id: str, file: Path | None, *, via_api: bool = False, as_json: bool) -> None:
    """Print one key."""
    fields = Server.of().get(_path_at_gateway(key_id)) if via_api else _shown(_found(_read(_path(file)), key_id))
    _print(fields, [fields], via_api=via_api, as_json=as_json)


def revoke(key_id: str, file: Path | None, *, via_api: bool = False, as_json: bool) -> None:
    """Put a tombstone in a key's place; a gateway refuses it then, and the others follow."""
    fields = Server.of().send("DELETE", _path_at_gateway(key_id)) if via_api else _shown(_revoked(_path(file), key_id))
    print_answer(fields, f"{fields['id']} is revoked", as_json=as_json)


def _made_at_gateway(options: Json) -> tuple[Json, str]:
    return Server.of().send("POST", _PATH, options), "by the gateways"


def _made_in_file(options: Json, path: Path) -> tuple[Json, str]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key_id, secret, now_unix_s = random_id("", ID_LENGTH), random_id("", SECRET_LENGTH), int(time.time())
    with _locked(path):
        pepper = _pepper(path)
        keys = _read(path) if path.exists() else []
        active = [key for key in keys if key.owner == options["owner"] and key.is_active(now_unix_s)]
        if len(active) >= ACTIVE_PER_OWNER:
            ids = " and ".join(key.id for key in active)
            raise CommandFailed(f"{options['owner']} has two keys that are good, {ids}; revoke one first")
        key = _new_key(options, key_id, digest_of(pepper, secret), now_unix_s)
        scopes = [str(scope) for scope in key.scopes]
        about = {"object": key.id, "owner": key.owner, "tenant": key.tenant, "scopes": sorted(scopes)}
        with acts_in(path.parent).act(Act.KEYS_CREATE, **about, file=str(path)):
            _write(path, [*keys, key])
    return {"key": key_text(key_id, secret), **_shown(key)}, f"in {path}"


def _revoked(path: Path, key_id: str) -> Key:
    with _locked(path):
        keys = _read(path)
        key = _found(keys, key_id)
        if key.revoked_unix_s is None:
            revoked = replace(key, revoked_unix_s=int(time.time()))
            about = {"object": key.id, "owner": key.owner, "tenant": key.tenant, "file": str(path)}
            with acts_in(path.parent).act(Act.KEYS_REVOKE, **about):
                _write(path, [revoked if one is key else one for one in keys])
            key = revoked
    return key


def _new_key(options: Json, key_id: str, digest: str, now_unix_s: int) -> Key:
    try:
        expires_ms = parse_go_duration_ms(options["expires"]) if "expires" in options else None
        if expires_ms is not None and expires_ms < 1000:
            raise ValueError("expires must be a second at least")
        expires = None if expires_ms is None else now_unix_s + expires_ms // 1000
        entry = options | {"id": key_id, "digest": digest, "created": now_unix_s, "expires": expires}
        return read_key(entry, "the key")
    except ValueError as error:
        raise CommandFailed(f"{error}; scopes are {', '.join(Scope)}") from error


def _path(file: Path | None) -> Path:
    settings = CliSettings.load()
    if file is None and settings.api_keys_file:
        file = Path(settings.api_keys_file)
    return file.expanduser() if file is not None else real_home(Path(settings.home)) / _FILE_NAME


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One command at a time changes the file."""
    try:
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _pepper(path: Path) -> bytes:
    """Return the pepper beside the file; it is made with the first key."""
    pepper = pepper_path(path)
    if not pepper.exists() and not path.exists():
        _write_private(pepper, secrets.token_bytes(PEPPER_BYTES))
    try:
        return read_private(pepper)
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{error}; without its pepper no key of {path} can be checked") from error


def _read(path: Path) -> list[Key]:
    try:
        return list(read_keys(read_private(path).decode()))
    except FileNotFoundError as error:
        raise CommandFailed(f"there is no {path}; `puna keys create` makes it", ExitCode.NOT_FOUND) from error
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CommandFailed(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def _write(path: Path, keys: Sequence[Key]) -> None:
    _write_private(path, write_keys(keys).encode())


def _write_private(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content)
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}") from error


def _found(keys: Sequence[Key], key_id: str) -> Key:
    for key in keys:
        if key.id == key_id:
            return key
    raise CommandFailed(f"there is no key {key_id}")


def _shown(key: Key) -> Json:
    """Return what is shown of a key, as a gateway shows it: its fields and its state, but not its digest."""
    fields = key_fields(key)
    del fields["digest"]
    active = "active" if key.is_active(time.time()) else "expired"
    return {**fields, "state": active if key.revoked_unix_s is None else "revoked"}


def _path_at_gateway(key_id: str) -> str:
    return f"{_PATH}/{quote(key_id, safe='')}"


def _print(answer: Json, keys: Sequence[Json], *, via_api: bool, as_json: bool) -> None:
    headings: tuple[str, ...] = _HEADINGS
    rows = [_row(fields) for fields in keys]
    if via_api:
        headings = (*_HEADINGS, "SOURCE", "LAST USED")
        rows = [[*_row(fields), fields["source"], _minute(fields.get("last_used"))] for fields in keys]
    print_listing(answer, headings, rows, as_json=as_json)


def _row(fields: Json) -> list[str]:
    return [
        fields["id"],
        fields["owner"],
        fields["tenant"],
        " ".join(fields["scopes"]),
        " ".join(fields["models"]),
        fields["band"],
        ", ".join(f"{fields[name]} {text}" for name, text in _LIMITS.items() if fields.get(name) is not None),
        _minute(fields.get("expires")),
        fields["state"],
    ]


def _minute(unix_s: float | None) -> str:
    return "" if unix_s is None else f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%MZ}"
