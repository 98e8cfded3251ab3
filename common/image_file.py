"""Facts about an image file from its first bytes, and limits on images. Pure; nothing is decoded here.

The size is known before memory for the pixels is allocated, so a file that would unfold to gigabytes is refused.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from common.errors import InvalidRequest

IMAGES_MAX = 8  # of one request
IMAGE_BYTES_MAX = 10 * 1024 * 1024
IMAGE_PIXELS_MAX = 32 * 1024 * 1024
_SIDE_MAX = 65535  # the formats' own limits; some of their fields could say more
_JPEG_SEGMENTS_MAX = 4096
# Start-of-frame markers of JPEG; C4, C8 and CC in the same range are something else.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers without a length.
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})


class ImageFormat(StrEnum):
    """Format that the decoder is limited to, in Pillow's names."""

    PNG = "PNG"
    JPEG = "JPEG"
    BMP = "BMP"
    GIF = "GIF"
    WEBP = "WEBP"


_BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": ImageFormat.PNG,
    b"\xff\xd8\xff": ImageFormat.JPEG,
    b"BM": ImageFormat.BMP,
    b"GIF87a": ImageFormat.GIF,
    b"GIF89a": ImageFormat.GIF,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHeader:
    """Format and size in pixels, as the file claims."""

    format: ImageFormat
    width: int
    height: int


def check_image_count(count: int) -> None:
    """Refuse a request with too many images.

    Raises:
        InvalidRequest: says how many there may be.
    """
    if count > IMAGES_MAX:
        raise InvalidRequest(f"a request can have {IMAGES_MAX} images, this one has {count}", param="images")


def find_format(data: bytes) -> ImageFormat | None:
    """Return the format that a file begins like; None: no format that is known."""
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return ImageFormat.WEBP
    return next((form for beginning, form in _BEGINNINGS.items() if data.startswith(beginning)), None)


def check_format(data: bytes) -> ImageFormat:
    """Return the format that a file begins like.

    Raises:
        InvalidRequest: no format that is known.
    """
    form = find_format(data)
    if form is None:
        raise InvalidRequest("an image is none of PNG, JPEG, BMP, GIF, WebP", param="images")
    return form


def read_image_header(data: bytes) -> ImageHeader:
    """Format and size of an image file.

    Raises:
        InvalidRequest: none of the formats, cut off, or over a limit; the caller sends another image.
    """
    if not data:
        raise InvalidRequest("an image is empty", param="images")
    if len(data) > IMAGE_BYTES_MAX:
        raise InvalidRequest(f"an image has {len(data)} bytes, at most {IMAGE_BYTES_MAX} are accepted", param="images")
    form = check_format(data)
    width, height = image_size(data, form)
    if not (0 < width <= _SIDE_MAX and 0 < height <= _SIDE_MAX):
        raise InvalidRequest("an image has no size", param="images")
    if width * height > IMAGE_PIXELS_MAX:
        raise InvalidRequest(
            f"an image has {width} x {height} pixels, at most {IMAGE_PIXELS_MAX} are accepted", param="images"
        )
    return ImageHeader(format=form, width=width, height=height)


def image_size(data: bytes, form: ImageFormat) -> tuple[int, int]:
    """Return width and height in pixels, as the file claims.

    Raises:
        InvalidRequest: the header is cut off, or has no size.
    """
    try:
        return _SIZES[form](data)
    except (struct.error, IndexError):
        raise InvalidRequest("an image ends inside its header", param="images") from None


def _png_size(data: bytes) -> tuple[int, int]:
    return struct.unpack_from(">II", data, 16)


def _gif_size(data: bytes) -> tuple[int, int]:
    return struct.unpack_from("<HH", data, 6)


def _bmp_size(data: bytes) -> tuple[int, int]:
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    # The oldest form has 16-bit sizes.
    width, height = struct.unpack_from("<HH" if header_bytes == 12 else "<ii", data, 18)
    return width, abs(height)  # negative: rows from the top


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Walk over the segments to the frame header."""
    place = 2
    for _ in range(_JPEG_SEGMENTS_MAX):
        if data[place] != 0xFF:
            break
        marker = data[place + 1]
        if marker == 0xFF:  # padding
            place += 1
        elif marker in _JPEG_BARE:
            place += 2
        elif marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, place + 5)
            return width, height
        else:
            (length,) = struct.unpack_from(">H", data, place + 2)
            place += 2 + length
    raise InvalidRequest("an image of type JPEG has no frame header", param="images")


def _webp_size(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8X" if len(data) >= 30:
            return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
        case b"VP8X":
            raise IndexError
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
    raise InvalidRequest("an image of type WebP has no frame header", param="images")


_SIZES: Mapping[ImageFormat, Callable[[bytes], tuple[int, int]]] = {
    ImageFormat.PNG: _png_size,
    ImageFormat.JPEG: _jpeg_size,
    ImageFormat.BMP: _bmp_size,
    ImageFormat.GIF: _gif_size,
    ImageFormat.WEBP: _webp_size,
}
