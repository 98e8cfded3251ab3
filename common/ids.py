"""Ids that are unguessable and sort by nothing."""

import secrets
import string

_BASE62 = string.digits + string.ascii_letters
_BASE32 = "0123456789abcdefghjkmnpqrstvwxyz"


def random_id(prefix: str, length: int) -> str:
    """Return `prefix` and `length` random base62 characters, as in "chatcmpl-" with 24."""
    return prefix + "".join(secrets.choice(_BASE62) for _ in range(length))


def new_request_id() -> str:
    """`req_` and 26 base32 characters (130 random bits)."""
    return "req_" + "".join(secrets.choice(_BASE32) for _ in range(26))


def new_incarnation() -> str:
    """Names one life of a process."""
    return random_id("", 12)
