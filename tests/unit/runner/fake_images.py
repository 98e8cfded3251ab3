"""Images without pixels: a model's way to lay one out, as plain numbers."""

import hashlib

import numpy as np

from common.image_file import ImageFormat, ImageHeader
from runner.core.sequence.inputs import MediaUnit, join_pieces, unit_key
from runner.core.sequence.media import EncodedImage, EncodedUnit, PreparedImage

BEGIN, END = 50, 51  # token ids of the markers
ROW_VALUE = 100  # what a row carries, so that a call shows it


def image(
    name: str, *, rows: int = 5, positions: int | None = None, markers: bool = True, whole: bool = False
) -> PreparedImage:
    """An image of one part: begin marker, rows, end marker."""
    content = hashlib.sha256(name.encode()).digest()
    unit = MediaUnit(
        key=unit_key(content, 0), rows=rows, positions=rows if positions is None else positions, whole=whole
    )
    units, inputs = join_pieces([[BEGIN], unit, [END]] if markers else [unit])
    header = ImageHeader(format=ImageFormat.PNG, width=8, height=8)
    return PreparedImage(hash=content, data=name.encode(), header=header, inputs=inputs, units=units)


def encoded(picture: PreparedImage) -> EncodedImage:
    """Rows that all carry ROW_VALUE, at consecutive positions."""
    return EncodedImage(
        units=tuple(
            EncodedUnit(
                rows=np.full((unit.rows, 1), ROW_VALUE, np.float32),
                positions=np.arange(unit.rows, dtype=np.int32).reshape(1, -1),
                moves=np.ones((1, 1), np.int32),
            )
            for unit in picture.units
        )
    )
