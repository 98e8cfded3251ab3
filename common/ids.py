"""Ids that are unguessable and sort by nothing."""

import secrets
import string

_BASE62 = string.digits + string.ascii_letters
_BASE32 = "0123456789abcdefghjkmnpqrstvwxyz"


def random_id(prefix: str, length: int) -> str:
    """Return `prefix` and `length` random base62 characters, as in "chatcmpl-" with 24."""
    return prefix + "".join(_random_characters(_BASE62, length))


def new_request_id() -> str:
    """`req_` and 26 base32 characters (130 random bits)."""
    return "req_" + "".join(_random_characters(_BASE32, 26))


def _random_characters(alphabet: str, length: int) -> list[str]:
    """From a few bytes at once: asking the system for each character costs more than a request's JSON."""
    usable = 256 - 256 % len(alphabet)  # bytes beyond it would make some characters likelier
    found: list[str] = []
    while len(found) < length:
        found += [alphabet[byte % len(alphabet)] for byte in secrets.token_bytes(length + 8) if byte < usable]
    return found[:length]


def new_incarnation() -> str:
    """Names one life of a process."""
    return random_id("", 12)
