"""Whether an answer brings the bytes that were asked for. Pure."""

import re
from enum import Enum, auto

_CONTENT_RANGE = re.compile(r"bytes\s+(\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.IGNORECASE)


class RangeAnswer(Enum):
    """What came back for the bytes [start, stop) of a blob."""

    PART = auto()  # as asked
    WHOLE = auto()  # the blob from its first byte: this server knows no ranges
    CHANGED = auto()  # other bytes than before: what is here of it is worthless
    REFUSED = auto()  # an error; the status says which


def range_header(start: int, stop: int) -> str:
    """Bytes [start, stop) as HTTP names them."""
    return f"bytes={start}-{stop - 1}"


def judge_answer(status: int, content_range: str, *, start: int, stop: int, size: int) -> RangeAnswer:
    """What an answer to a request for bytes [start, stop) of `size` is worth."""
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
