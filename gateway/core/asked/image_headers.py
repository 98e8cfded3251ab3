"""How large an image says that it is, read from its first bytes without decoding anything. Pure."""

import struct

_PNG = b"\x89PNG\r\n\x1a\n"
# Of JPEG's markers those that begin a frame; the others in this range are tables.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_SEGMENTS_MAX = 1_000


def image_size(data: bytes) -> tuple[int, int] | None:
    """Width and height; None where the header is cut or says nothing: the decoder judges."""
    try:
        if data.startswith(_PNG):
            return struct.unpack_from(">II", data, 16)
        if data.startswith((b"GIF87a", b"GIF89a")):
            return struct.unpack_from("<HH", data, 6)
        if data.startswith(b"BM"):
            width, height = struct.unpack_from("<ii", data, 18)
            return abs(width), abs(height)
        if data.startswith(b"\xff\xd8"):
            return _jpeg_size(data)
        if data.startswith(b"RIFF"):
            return _webp_size(data)
    except struct.error:
        return None
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    position = 2
    for _ in range(_JPEG_SEGMENTS_MAX):
        begin, marker, length = struct.unpack_from(">BBH", data, position)
        if begin != 0xFF:
            return None
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, position + 5)
            return width, height
        position += 2 + length
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8X":
            parts = struct.unpack_from("<6B", data, 24)
            return _24_bits(parts[:3]) + 1, _24_bits(parts[3:]) + 1
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return None


def _24_bits(parts: tuple[int, ...]) -> int:
    return parts[0] | parts[1] << 8 | parts[2] << 16
