"""Digests of blobs: 64 hex digits, with or without the name of their algorithm. Pure."""

import hashlib
import re
from collections.abc import Iterable

ALGORITHM = "sha256"
_HEX = re.compile(r"[0-9a-f]{64}")
# A blob as manifests name it, as its file is called, and bare.
_PREFIXES = (f"{ALGORITHM}:", f"{ALGORITHM}-")


def parse_digest(text: str) -> str:
    """Parse the 64 hex digits of a digest.

    Raises:
        ValueError: it is none; nothing of it may become part of a path.
    """
    for prefix in _PREFIXES:
        if text.startswith(prefix):
            text = text.removeprefix(prefix)
            break
    if not _HEX.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is no sha256 digest")
    return text


def qualified(digest: str) -> str:
    """As manifests and people name it, "sha256:" and the digits."""
    return f"{ALGORITHM}:{parse_digest(digest)}"


def file_name(digest: str) -> str:
    """Return the file name of a blob."""
    return f"{ALGORITHM}-{parse_digest(digest)}"


def digest_of(content: bytes) -> str:
    """Return the digest of bytes in memory."""
    return hashlib.sha256(content).hexdigest()


def combined(parts: Iterable[str]) -> str:
    """One digest for several things that are loaded together, in their order."""
    return digest_of("\n".join(parts).encode())
