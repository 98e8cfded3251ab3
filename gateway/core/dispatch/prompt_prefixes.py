"""Names for the beginnings of a prompt, so that runners can tell which of them they still hold. Pure.

A name is a hash of everything up to a boundary. Boundaries lie closer together at the start, where prompts part, than
far inside, so that the longest prompts have some tens of them. Names of two salts never meet, as runners use nothing
that they hold for a request of another salt.
"""

import hashlib
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

# Shorter than this nothing is worth another way.
_STEP_BYTES_MIN = 64
# A prompt is cut where it differs, and at most this part of what is equal is not seen.
_STEP_SHARE = 8
# No more names than this; what is longer is distinguished by the rest of its request.
NAMES_MAX = 128


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a prompt. Kinds are kept apart: text that a user wrote is not the template's."""

    kind: int
    content: bytes


@dataclass(frozen=True, slots=True)
class PromptPrefixes:
    """`names[i]` is of the first `ends[i]` bytes of a prompt; shortest first."""

    names: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    size_bytes: int = 0

    def held_bytes(self, held: AbstractSet[int]) -> int:
        """Return the bytes of the prompt held under these names of beginnings."""
        for name, end in zip(reversed(self.names), reversed(self.ends), strict=True):
            if name in held:
                return end
        return 0


NO_PREFIXES = PromptPrefixes()


def name_prefixes(pieces: Iterable[Piece], *, salt: str) -> PromptPrefixes:
    """Name the beginnings of a prompt, the whole of it included."""
    digest = hashlib.blake2b(digest_size=8, key=hashlib.sha256(salt.encode()).digest())
    names: list[int] = []
    ends: list[int] = []
    size, boundary, kind = 0, _STEP_BYTES_MIN, -1

    def name() -> None:
        names.append(int.from_bytes(digest.copy().digest(), "little"))
        ends.append(size)

    for piece in pieces:
        if piece.kind != kind:
            kind = piece.kind
            digest.update(b"\0" + bytes([kind]))
        view = memoryview(piece.content)
        while len(names) < NAMES_MAX - 1 and size + len(view) >= boundary:
            part = boundary - size
            digest.update(view[:part])
            view, size = view[part:], boundary
            name()
            boundary += max(_STEP_BYTES_MIN, boundary // _STEP_SHARE)
        digest.update(view)
        size += len(view)
    if size and (not ends or ends[-1] < size):
        name()
    return PromptPrefixes(names=tuple(names), ends=tuple(ends), size_bytes=size)
