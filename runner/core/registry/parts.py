"""Parts in which a blob is fetched, the file that keeps them over a restart, and answers to their requests. Pure."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

MIB = 1024 * 1024
STATE_VERSION = 1
PARTS_MAX = 100_000
_CONTENT_RANGE = re.compile(r"bytes\s+(\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.IGNORECASE)


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
    """Return the number of bytes that are on disk."""
    return sum(part.done for part in parts)


def frontier(parts: Sequence[Part]) -> int:
    """Return the number of bytes without a gap, from the first one on."""
    for part in parts:
        if not part.is_done:
            return part.next
    return parts[-1].stop if parts else 0


def encode_state(parts: Sequence[Part], *, digest: str, size_bytes: int) -> bytes:
    """Encode the note beside an unfinished blob."""
    state = {
        "version": STATE_VERSION,
        "digest": digest,
        "size_bytes": size_bytes,
        "parts": [[part.start, part.stop, part.done] for part in parts],
    }
    return json.dumps(state).encode()


def decode_state(content: bytes, *, digest: str, size_bytes: int) -> tuple[Part, ...] | None:
    """Decode the parts of a state file; None: it is damaged, or about another blob, or one of another size."""
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


class RangeAnswer(Enum):
    """Answer for the bytes [start, stop) of a blob."""

    PART = auto()  # as asked
    WHOLE = auto()  # the blob from its first byte: this server knows no ranges
    CHANGED = auto()  # other bytes than before: what is here of it is worthless
    REFUSED = auto()  # an error; the status says which


def range_header(start: int, stop: int) -> str:
    """Format bytes [start, stop) as HTTP names them."""
    return f"bytes={start}-{stop - 1}"


def judge_answer(status: int, content_range: str, *, start: int, stop: int, size: int) -> RangeAnswer:
    """Classify an answer to a request for bytes [start, stop) of `size`."""
    if status == 200:
        return RangeAnswer.WHOLE
    if status == 416:
        return RangeAnswer.CHANGED
    if status != 206:
        return RangeAnswer.REFUSED
    found = _CONTENT_RANGE.fullmatch(content_range.strip())
    if found is None or int(found[1]) != start or int(found[2]) != stop - 1:
        return RangeAnswer.CHANGED
    return RangeAnswer.PART if found[3] == "*" or int(found[3]) == size else RangeAnswer.CHANGED
