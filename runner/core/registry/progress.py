"""Progress lines for listeners of a pull, in Ollama's words. Pure.

Lines are kept in the order in which they first appeared; a listener who comes late, or reads slowly, sees the newest
state of each, never a backlog.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from runner.core.store.digests import qualified

PULLING_MANIFEST = "pulling manifest"
VERIFYING = "verifying sha256 digest"
WRITING_MANIFEST = "writing manifest"
REMOVING_UNUSED = "removing unused layers"
SUCCESS = "success"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of progress. `digest` is as people write it; empty: it is about no blob."""

    status: str
    digest: str = ""
    total_bytes: int = 0
    completed_bytes: int = 0


def pulling(digest: str, *, total_bytes: int, completed_bytes: int) -> Line:
    """Return the line of a blob on its way."""
    return Line(
        status=f"pulling {digest[:12]}",
        digest=qualified(digest),
        total_bytes=total_bytes,
        completed_bytes=completed_bytes,
    )


@dataclass(slots=True)
class Board:
    """The lines of one job."""

    version: int = 0
    _lines: dict[str, tuple[int, Line]] = field(default_factory=dict)

    def show(self, line: Line) -> None:
        """Add a line, or the news of one that is there."""
        known = self._lines.get(line.status)
        if known is not None and known[1] == line:
            return
        self.version += 1
        self._lines[line.status] = (self.version, line)

    def since(self, version: int) -> Iterator[Line]:
        """Yield the lines that changed after a version, in their order."""
        for changed, line in self._lines.values():
            if changed > version:
                yield line
