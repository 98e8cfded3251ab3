"""Messages between a runner and its host about saved states: one JSON object each, most with a descriptor. Pure."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from common.spec.prompt_names import NAME_BYTES, NAMES_MAX
from runner.core.states.catalogue import StateEntry
from runner.core.states.chain import BLOCK_INPUTS, BLOCKS_MAX, HASH_BYTES
from runner.core.states.gate import Tier

MESSAGE_BYTES_MAX = 128 * 1024
SALT_LENGTH_MAX = 256
_KEY_PATTERN = re.compile(f"[0-9a-f]{{{2 * HASH_BYTES}}}")
_SECONDS_MAX = 1e6
_COUNT_MAX = 2**48


class BadMessage(Exception):
    """A message that no honest peer sends."""


def encode(operation: str, **fields: Any) -> bytes:
    """Return a message."""
    return json.dumps({"op": operation, **fields}, separators=(",", ":")).encode()


def decode(data: bytes) -> Mapping[str, Any]:
    """Return the fields of a message.

    Raises:
        BadMessage: it is none.
    """
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadMessage("no JSON") from error
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
        raise BadMessage("no operation")
    return message


def entry_fields(entry: StateEntry) -> dict[str, Any]:
    """Return a state's fields of a message."""
    return {
        "key": entry.key,
        "links": links_text(entry.links),
        "inputs": entry.inputs,
        "bytes": entry.size_bytes,
        "saved_s": entry.saved_s,
        "names": base64.b64encode(b"".join(name.to_bytes(NAME_BYTES, "big") for name in entry.names)).decode(),
    }


def read_entry(message: Mapping[str, Any], *, tier: Tier) -> StateEntry:
    """Return the state that a message is about.

    Raises:
        BadMessage: a field is missing or out of its range.
    """
    links = read_links(message.get("links"))
    inputs = natural(message, "inputs")
    blocks = min(inputs // BLOCK_INPUTS, BLOCKS_MAX)
    if len(links) != blocks or not blocks:
        raise BadMessage("links")
    return StateEntry(
        key=read_key(message, "key"),
        links=links,
        inputs=inputs,
        size_bytes=natural(message, "bytes"),
        tier=tier,
        saved_s=read_seconds(message, "saved_s"),
        names=_read_names(message.get("names", "")),
    )


def read_key(message: Mapping[str, Any], name: str) -> str:
    """Return a key.

    Raises:
        BadMessage: it is none; it may become the name of a file.
    """
    key = message.get(name)
    if not isinstance(key, str) or not _KEY_PATTERN.fullmatch(key):
        raise BadMessage(name)
    return key


def read_salt(message: Mapping[str, Any]) -> str:
    """Return a salt.

    Raises:
        BadMessage: it is none.
    """
    salt = message.get("salt")
    if not isinstance(salt, str) or len(salt) > SALT_LENGTH_MAX:
        raise BadMessage("salt")
    return salt


def natural(message: Mapping[str, Any], name: str) -> int:
    """Return a number from 0 on.

    Raises:
        BadMessage: it is none.
    """
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _COUNT_MAX:
        raise BadMessage(name)
    return value


def read_seconds(message: Mapping[str, Any], name: str) -> float:
    """Return a duration.

    Raises:
        BadMessage: it is none.
    """
    seconds = message.get(name)
    if not isinstance(seconds, int | float) or not 0 <= seconds <= _SECONDS_MAX:
        raise BadMessage(name)
    return float(seconds)


def links_text(links: Sequence[bytes]) -> str:
    """Return hashes of blocks as `read_links` reads them."""
    return base64.b64encode(b"".join(links)).decode()


def read_links(text: object) -> tuple[bytes, ...]:
    """Return the hashes of a state's blocks.

    Raises:
        BadMessage: they are none.
    """
    return parted(_joined(text, "links", HASH_BYTES))


def parted(links: bytes) -> tuple[bytes, ...]:
    """Return the hashes that are joined in some bytes.

    Raises:
        BadMessage: they are none, or too many.
    """
    if len(links) % HASH_BYTES or len(links) > BLOCKS_MAX * HASH_BYTES:
        raise BadMessage("links")
    return tuple(links[start : start + HASH_BYTES] for start in range(0, len(links), HASH_BYTES))


def _read_names(text: object) -> tuple[int, ...]:
    joined = _joined(text, "names", NAME_BYTES)
    starts = range(0, len(joined), NAME_BYTES)
    if len(starts) > NAMES_MAX:
        raise BadMessage("names")
    return tuple(int.from_bytes(joined[start : start + NAME_BYTES], "big") for start in starts)


def _joined(text: object, what: str, size_bytes: int) -> bytes:
    """Return bytes that consist of pieces of one size."""
    try:
        joined = base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except ValueError as error:
        raise BadMessage(what) from error
    if len(joined) % size_bytes:
        raise BadMessage(what)
    return joined


def batches(entries: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Part entries so that each message stays within its bound."""
    parts: list[list[dict[str, Any]]] = []
    room = 0
    for entry in entries:
        size = len(json.dumps(entry)) + 1
        if size > room:
            parts.append([])
            room = MESSAGE_BYTES_MAX // 2
        parts[-1].append(entry)
        room -= size
    return parts
