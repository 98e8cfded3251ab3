"""How slowly a large body may come: as long as it takes, but never slower than a rate. Pure."""

from dataclasses import dataclass

BYTES_PER_S_MIN = 64 * 1024
# A client may fall silent for so long, if it was quick enough before.
PAUSE_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class UploadPace:
    """`left_s` is how long the next piece may take. Only waiting for the client counts."""

    left_s: float = PAUSE_S_MAX

    def after(self, piece_bytes: int, waited_s: float) -> "UploadPace":
        """A piece came."""
        return UploadPace(min(self.left_s - waited_s + piece_bytes / BYTES_PER_S_MIN, PAUSE_S_MAX))
