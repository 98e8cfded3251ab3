"""Ids that are unguessable and sort by nothing."""

import secrets
import string


class _Alphabet:
    """Draws characters from a few bytes at once: asking the system for each costs more than a request's JSON."""

    def __init__(self, characters: str) -> None:
        usable = 256 - 256 % len(characters)  # bytes beyond it would make some characters likelier
        self._of_byte = bytes(ord(characters[byte % len(characters)]) for byte in range(256))
        self._unusable = bytes(range(usable, 256))

    def draw(self, length: int) -> str:
        found = b""
        while len(found) < length:
            found += secrets.token_bytes(length + 8).translate(self._of_byte, self._unusable)
        return found[:length].decode()


_BASE62 = _Alphabet(string.digits + string.ascii_letters)
_BASE32 = _Alphabet("0123456789abcdefghjkmnpqrstvwxyz")


def random_id(prefix: str, length: int) -> str:
    """Return `prefix` and `length` random base62 characters, as in "chatcmpl-" with 24."""
    return prefix + _BASE62.draw(length)


def new_request_id() -> str:
    """`req_` and 26 base32 characters (130 random bits)."""
    return "req_" + _BASE32.draw(26)


def new_incarnation() -> str:
    """Names one life of a process."""
    return random_id("", 12)
