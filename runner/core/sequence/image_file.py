"""Facts about an image file from its first bytes. Pure; nothing is decoded here.

The size is known before memory for the pixels is allocated, so a file that would unfold to gigabytes is refused.
"""

import struct
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


def read_image_header(data: bytes) -> ImageHeader:
    """Format and size of an image file.

    Raises:
        InvalidRequest: none of the formats, cut off, or over a limit; the caller sends another image.
    """
    if not data:
        raise InvalidRequest("an image is empty", param="images")
    if len(data) > IMAGE_BYTES_MAX:
        raise InvalidRequest(f"an image has {len(data)} bytes, at most {IMAGE_BYTES_MAX} are accepted", param="images")
    try:
        header = _read(data)
    except (struct.error, IndexError):
        raise InvalidRequest("an image ends inside its header", param="images") from None
    if header is None:
        raise InvalidRequest("an image is none of PNG, JPEG, BMP, GIF, WebP", param="images")
    if not (0 < header.width <= _SIDE_MAX and 0 < header.height <= _SIDE_MAX):
        raise InvalidRequest("an image has no size", param="images")
    if header.width * header.height > IMAGE_PIXELS_MAX:
        raise InvalidRequest(
            f"an image has {header.width} x {header.height} pixels, at most {IMAGE_PIXELS_MAX} are accepted",
            param="images",
        )
    return header


def _read(data: bytes) -> ImageHeader | None:
    """None: no format that is known."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        width, height = struct.unpack_from(">II", data, 16)
        return ImageHeader(format=ImageFormat.PNG, width=width, height=height)
    if data.startswith((b"GIF87a", b"GIF89a")):
        width, height = struct.unpack_from("<HH", data, 6)
        return ImageHeader(format=ImageFormat.GIF, width=width, height=height)
    if data.startswith(b"BM"):
        return _read_bmp(data)
    if data.startswith(b"\xff\xd8\xff"):
        return _read_jpeg(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _read_webp(data)
    return None


def _read_bmp(data: bytes) -> ImageHeader:
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    if header_bytes == 12:  # the oldest form has 16-bit sizes
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return ImageHeader(format=ImageFormat.BMP, width=width, height=abs(height))  # negative: rows from the top


def _read_jpeg(data: bytes) -> ImageHeader:
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
            return ImageHeader(format=ImageFormat.JPEG, width=width, height=height)
        else:
            (length,) = struct.unpack_from(">H", data, place + 2)
            place += 2 + length
    raise InvalidRequest("an image of type JPEG has no frame header", param="images")


def _read_webp(data: bytes) -> ImageHeader:
    kind = data[12:16]
    if kind == b"VP8X":
        width = 1 + int.from_bytes(data[24:27], "little")
        height = 1 + int.from_bytes(data[27:30], "little")
        if len(data) < 30:
            raise IndexError
    elif kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    elif kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        width, height = width & 0x3FFF, height & 0x3FFF
    else:
        raise InvalidRequest("an image of type WebP has no frame header", param="images")
    return ImageHeader(format=ImageFormat.WEBP, width=width, height=height)
