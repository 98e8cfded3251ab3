"""Images in requests: as they come, where they stand in a text, and what they have to be. Pure."""

import base64
import binascii
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import InvalidRequest
from common.image_file import (
    IMAGE_BYTES_MAX,
    IMAGE_PIXELS_MAX,
    ImageFormat,
    check_format,
    check_image_count,
    find_format,
    image_size,
)

# As large a GIF as is taken has 41,000 blocks where its encoder fills them; to look at more would take too long.
_GIF_BLOCKS_MAX = 50_000
_CHUNKS_MAX = 10_000
_GIF_EXTENSION, _GIF_FRAME = 0x21, 0x2C
_GIF_TABLE = 0x80  # of the flags: a table of colours follows, 3 × 2^(low bits + 1) bytes long


def is_animated(data: bytes) -> bool:
    """Return True for a file of several frames, and for one that cannot be judged in so many steps."""
    form = find_format(data)
    try:
        return form in _JUDGES and _JUDGES[form](data)
    except (IndexError, struct.error):
        return False  # cut: the decoder judges


def _is_animated_gif(data: bytes) -> bool:
    place = 13 + _table_bytes(data[10])
    frames = 0
    blocks = 0
    while data[place] in (_GIF_EXTENSION, _GIF_FRAME):
        if data[place] == _GIF_FRAME:
            frames += 1
            if frames > 1:
                return True
            place += 10 + _table_bytes(data[place + 9]) + 1
        else:
            place += 2
        while length := data[place]:
            place += length + 1
            blocks += 1
            if blocks > _GIF_BLOCKS_MAX:
                return True
        place += 1
        blocks += 1
    return False


def _table_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & _GIF_TABLE else 0


def _is_animated_png(data: bytes) -> bool:
    """Read the number of frames, which stands before the pixels."""
    place = 8
    for _ in range(_CHUNKS_MAX):
        length, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"acTL":
            (frames,) = struct.unpack_from(">I", data, place + 8)
            return bool(frames > 1)
        if kind == b"IDAT":
            return False
        place += 12 + length
    return True


def _is_animated_webp(data: bytes) -> bool:
    place, frames = 12, 0
    for _ in range(_CHUNKS_MAX):
        kind, length = struct.unpack_from("<4sI", data, place)
        frames += kind == b"ANMF"
        if frames > 1:
            return True
        place += 8 + length + length % 2
    return True


_JUDGES = {
    ImageFormat.GIF: _is_animated_gif,
    ImageFormat.PNG: _is_animated_png,
    ImageFormat.WEBP: _is_animated_webp,
}


# Models that take one image are older than those that the engine runs; the check costs nothing.
ONE_IMAGE_ARCHITECTURES = frozenset({"mllama"})
URLS_REFUSED = "image URLs are not currently supported, please use base64 encoded data instead"
_DATA_URI = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_MARKER = re.compile(r"\[img-(\d{1,9})\]")


@dataclass(frozen=True, slots=True)
class RequestImage:
    """An image as a body brings it: base64, bare or as a data URI. Nothing of it was looked at."""

    text: str


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image that stands before the character at `offset` of a text."""

    image: RequestImage
    offset: int


def decode_image(image: RequestImage) -> bytes:
    """Decode the base64 text to the file's bytes.

    Raises:
        InvalidRequest: a URL, no base64, too large, several frames, or nothing that looks like an image.
    """
    text = image.text
    if text[:6].lower().startswith(("http:/", "https:")):
        raise InvalidRequest(URLS_REFUSED, param="images")
    uri = _DATA_URI.match(text)
    encoded = text[uri.end() :] if uri is not None else text
    if len(encoded) > (IMAGE_BYTES_MAX + 2) // 3 * 4:
        raise InvalidRequest(f"an image has more than {IMAGE_BYTES_MAX} bytes", param="images")
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("an image is not valid base64", param="images") from None
    form = check_format(data)
    if _pixels(data, form) > IMAGE_PIXELS_MAX:  # a bomb is refused before it is decoded
        raise InvalidRequest(f"an image has more than {IMAGE_PIXELS_MAX} pixels", param="images")
    if is_animated(data):
        raise InvalidRequest("an image has more than one frame", param="images")
    return data


def _pixels(data: bytes, form: ImageFormat) -> int:
    try:
        width, height = image_size(data, form)
    except InvalidRequest:
        return 0  # the decoder judges
    return width * height


def check_images(count: int, *, architecture: str) -> None:
    """Refuse more images than a request, or a model, can have.

    Raises:
        InvalidRequest: says how many there may be.
    """
    if count > 1 and architecture in ONE_IMAGE_ARCHITECTURES:
        raise InvalidRequest("this model only supports one image while more than one image requested", param="images")
    check_image_count(count)


def before_text(images: Sequence[RequestImage]) -> tuple[PlacedImage, ...]:
    """Place all images before a text, in order."""
    return tuple(PlacedImage(image, 0) for image in images)


def place_by_markers(text: str, images: Sequence[RequestImage]) -> tuple[str, tuple[PlacedImage, ...]]:
    """Remove the `[img-N]` markers of a raw prompt and place the images there; the others stand before it.

    Without images nothing in a prompt is a marker.

    Raises:
        InvalidRequest: a marker names an image that is not there.
    """
    if not images:
        return text, ()
    pieces: list[str] = []
    placed: list[PlacedImage] = []
    named: set[int] = set()
    length = position = 0
    for marker in _MARKER.finditer(text):
        number = int(marker[1])
        if number >= len(images):
            raise InvalidRequest(f"invalid image index: {number}", param="prompt")
        pieces.append(text[position : marker.start()])
        length += len(pieces[-1])
        placed.append(PlacedImage(images[number], length))
        named.add(number)
        position = marker.end()
    pieces.append(text[position:])
    unnamed = [image for number, image in enumerate(images) if number not in named]
    return "".join(pieces), (*before_text(unnamed), *placed)


def split_at_images(text: str, images: Sequence[PlacedImage]) -> list[str | RequestImage]:
    """Split a text at its images, in order."""
    pieces: list[str | RequestImage] = []
    position = 0
    for placed in sorted(images, key=lambda each: each.offset):  # stable: images at one place keep their order
        if placed.offset > position:
            pieces.append(text[position : placed.offset])
            position = placed.offset
        pieces.append(placed.image)
    if position < len(text):
        pieces.append(text[position:])
    return pieces
