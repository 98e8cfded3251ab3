"""The parts in which a blob is fetched, and the file that remembers them over a restart. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

MIB = 1024 * 1024
STATE_VERSION = 1
PARTS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSizes:
    """A part is long enough to be worth a connection, short enough that a restart of the last one is no matter."""

    parallel: int = 8
    min_bytes: int = 64 * MIB
    max_bytes: int = 512 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Bytes [start, stop) of a blob, of which the first `done` are here."""

    start: int
    stop: int
    done: int = 0

    @property
    def next(self) -> int:
        """The first byte that is missing."""
        return self.start + self.done

    @property
    def is_done(self) -> bool:
        """Nothing is missing."""
        return self.next == self.stop

    def grown(self, count: int) -> "Part":
        """With so many more bytes."""
        assert 0 <= count <= self.stop - self.next
        return replace(self, done=self.done + count)


def plan_parts(size_bytes: int, sizes: PartSizes) -> tuple[Part, ...]:
    """Parts of equal length, the last one shorter, that cover a blob."""
    length = -(-size_bytes // sizes.parallel)
    length = max(sizes.min_bytes, min(length, sizes.max_bytes), -(-size_bytes // PARTS_MAX), 1)
    return tuple(Part(start=start, stop=min(start + length, size_bytes)) for start in range(0, size_bytes, length))


def done_bytes(parts: Sequence[Part]) -> int:
    """How much is here."""
    return sum(part.done for part in parts)


def frontier(parts: Sequence[Part]) -> int:
    """How many bytes are here without a gap, from the first one on."""
    for part in parts:
        if not part.is_done:
            return part.next
    return parts[-1].stop if parts else 0


def encode_state(parts: Sequence[Part], *, digest: str, size_bytes: int) -> bytes:
    """What is written beside an unfinished blob."""
    state = {
        "version": STATE_VERSION,
        "digest": digest,
        "size_bytes": size_bytes,
        "parts": [[part.start, part.stop, part.done] for part in parts],
    }
    return json.dumps(state).encode()


def decode_state(content: bytes, *, digest: str, size_bytes: int) -> tuple[Part, ...] | None:
    """The parts of a state file; None: it is damaged, or about another blob, or one of another size."""
    try:
        state = json.loads(content)
        parts = tuple(Part(start=int(a), stop=int(b), done=int(c)) for a, b, c in state["parts"])
        head = (state["version"], state["digest"], state["size_bytes"])
    except (ValueError, TypeError, KeyError):
        return None
    if head != (STATE_VERSION, digest, size_bytes):
        return None
    position = 0
    for part in parts:
        if part.start != position or part.stop <= part.start or not 0 <= part.done <= part.stop - part.start:
            return None
        position = part.stop
    return parts if position == size_bytes else None
