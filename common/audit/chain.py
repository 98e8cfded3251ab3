"""Lines of an audit log, each with the hash of the line before it. Pure.

A changed, inserted or removed line breaks the chain. A person who can rewrite the whole file can also compute a new
chain: keep the last hash, or the lines themselves, in another place as well.
"""

import hashlib
from collections.abc import Iterable, Mapping

import orjson

_HASH = b',"hash":"'


class ChainBrokenError(ValueError):
    """A line does not follow from the one before it. `number` is that of the line, from 1."""

    def __init__(self, number: int, fault: str) -> None:
        """`fault` says what is wrong with the line."""
        super().__init__(f"line {number} {fault}")
        self.number = number


def seal(entry: Mapping[str, object], previous: str) -> tuple[bytes, str]:
    """Return the line of an entry, and its hash; `previous` is the hash of the line before, empty for the first one."""
    body = orjson.dumps({**entry, "previous": previous})
    digest = hashlib.sha256(body).hexdigest()
    return b'%b%b%b"}\n' % (body[:-1], _HASH, digest.encode()), digest


def last_hash(line: bytes) -> str:
    """Return the hash that a line states; empty if it is no line of a log."""
    _, mark, rest = line.rpartition(_HASH)
    return rest.removesuffix(b'"}').decode(errors="replace") if mark else ""


def check_chain(lines: Iterable[bytes]) -> int:
    """Count the lines of a chain, without their line ends. A file that was rotated begins in the middle of its chain.

    Raises:
        ChainBrokenError: a line was changed, inserted or removed.
    """
    number, previous = 0, None
    for number, line in enumerate(lines, start=1):
        body, mark, _ = line.rpartition(_HASH)
        try:
            entry = orjson.loads(body + b"}")
        except orjson.JSONDecodeError:
            raise ChainBrokenError(number, "is no line of an audit log") from None
        digest = hashlib.sha256(body + b"}").hexdigest()
        if not mark or last_hash(line) != digest:
            raise ChainBrokenError(number, "was changed")
        if previous is not None and entry.get("previous") != previous:
            raise ChainBrokenError(number, "does not follow the line before it: lines are missing or inserted")
        previous = digest
    return number
