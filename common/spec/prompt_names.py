"""Names of the beginnings of prompts, by which gateways recognise what runners hold. Pure.

A name is a hash of all bytes up to the end of a block of text. Gateways name a prompt, runners name the same bytes, and
the text of an answer behind them: so a name stands for the same beginning in both. Names of two salts never meet, as
runners use nothing that they hold for a request of another salt.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

# About as many bytes as a block of a saved state has tokens: 64 in most languages. What is equal beyond the last whole
# block is not seen.
BLOCK_BYTES = 256
# Of one prompt: half a megabyte, or as many blocks as a saved state is found by. What follows has no names.
NAMES_MAX = 2048
NAME_BYTES = 8
# An image is recognised by its size and its ends: a name is a hint, and megabytes would hold up the event loop.
_IMAGE_END_BYTES = 4096
_ID_BYTES = 4


class PromptNames:
    """Names of a text that grows: `names[i]` is of its first `ends[i]` bytes."""

    __slots__ = ("_digest", "ends", "names", "size_bytes")

    def __init__(self, salt: str) -> None:
        self._digest = hashlib.blake2b(digest_size=NAME_BYTES, key=hashlib.sha256(salt.encode()).digest())
        self.names: list[int] = []
        self.ends: list[int] = []
        self.size_bytes = 0

    def add(self, data: bytes) -> None:
        """Append bytes, and name the blocks that they complete."""
        view = memoryview(data)
        while len(view) >= (part := BLOCK_BYTES - self.size_bytes % BLOCK_BYTES):
            self._digest.update(view[:part])
            view = view[part:]
            self.size_bytes += part
            self.name_end()
        self._digest.update(view)
        self.size_bytes += len(view)

    def name_end(self) -> None:
        """Name everything so far, unless it has a name."""
        if self.size_bytes and len(self.names) < NAMES_MAX and (not self.ends or self.ends[-1] < self.size_bytes):
            self.names.append(int.from_bytes(self._digest.copy().digest(), "little"))
            self.ends.append(self.size_bytes)


def name_prompt(parts: Iterable[bytes], *, salt: str) -> PromptNames:
    """Name the beginnings of a prompt, the whole of it included."""
    names = PromptNames(salt)
    for part in parts:
        names.add(part)
    names.name_end()
    return names


def inputs_at(ends: Sequence[int], pieces: Iterable[bytes], *, size_bytes: int) -> list[int]:
    """Return how many inputs hold each beginning of a text of tokens, by the bytes of the beginning and of each token.

    The pieces may have more bytes than the text: a begin token, or a space that the vocabulary puts in front. Perhaps
    all of that precedes the first block.
    """
    reached = list(accumulate(map(len, pieces)))
    added = max(0, reached[-1] - size_bytes) if reached else 0
    return [
        len(reached) if end == size_bytes else min(bisect_left(reached, end + added) + 1, len(reached)) for end in ends
    ]


def bytes_of_ids(token_ids: Sequence[int]) -> bytes:
    """Return the bytes that token ids of a prompt are named by."""
    return b"".join(token_id.to_bytes(_ID_BYTES, "little") for token_id in token_ids)


def bytes_of_image(data: bytes) -> bytes:
    """Return the bytes that an image of a prompt is named by."""
    return len(data).to_bytes(8, "little") + data[:_IMAGE_END_BYTES] + data[-_IMAGE_END_BYTES:]
