"""Images of a request, and the rows that the projector made of them. Pure."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from common.image_file import ImageHeader
from runner.core.sequence.inputs import MediaUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedImage:
    """An image file as a request brought it, and what it becomes among the inputs.

    Attributes:
        hash: SHA-256 of the file, and of the salt if there is one. Rows are computed once for each.
        inputs: begin marker, rows, end marker; what stands for it in the prompt.
        units: the rows' units, in order. Each key names a part of this image.
    """

    hash: bytes
    data: bytes
    header: ImageHeader
    inputs: tuple[int, ...]
    units: tuple[MediaUnit, ...]

    def salted(self, salt: str) -> "PreparedImage":
        """Return the same image with rows of its own for each salt."""
        return replace(self, hash=hashlib.sha256(self.hash + salt.encode()).digest()) if salt else self


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedUnit:
    """The rows of one unit.

    Attributes:
        rows: float32[rows, embedding].
        positions: int32[components, rows] of a unit that begins at position 0.
        moves: int32[components, 1]; 1 where a component grows with the position where the unit begins.
    """

    rows: NDArray[np.float32]
    positions: NDArray[np.int32]
    moves: NDArray[np.int32]

    def positions_from(self, start: int, first: int, count: int) -> NDArray[np.int32]:
        """int32[components, count] of the rows from `first` on, where the unit begins at position `start`."""
        return np.asarray(self.positions[:, first : first + count] + self.moves * start, dtype=np.int32)

    @property
    def size_bytes(self) -> int:
        """Of both arrays."""
        return self.rows.nbytes + self.positions.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedImage:
    """Everything that the projector made of an image, a unit for each part."""

    units: tuple[EncodedUnit, ...]

    @property
    def size_bytes(self) -> int:
        """Of all units."""
        return sum(unit.size_bytes for unit in self.units)
