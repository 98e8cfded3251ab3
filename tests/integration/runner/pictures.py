"""Images for tests: files of known pixels."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]


def picture(seed: int, *, width: int = 160, height: int = 96) -> Pixels:
    """uint8[height, width, 3]: smooth colours with some noise, another one for each seed."""
    random = np.random.default_rng(seed)
    corners = random.integers(0, 255, (4, 4, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(corners).resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noise = random.integers(-8, 9, smooth.shape)
    return np.asarray(np.clip(smooth + noise, 0, 255), np.uint8)


def image_file(pixels: Pixels | NDArray[np.uint16], form: str = "PNG") -> bytes:
    """The pixels as a file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()
