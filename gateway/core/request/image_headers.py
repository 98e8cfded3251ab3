"""Size and frames of an image as its file declares them, decoding nothing. Pure."""

import struct

# As large a GIF as is taken has 41,000 blocks where its encoder fills them; to look at more would take too long.
_GIF_BLOCKS_MAX = 50_000
_CHUNKS_MAX = 10_000
_GIF_EXTENSION, _GIF_FRAME = 0x21, 0x2C
_GIF_TABLE = 0x80  # of the flags: a table of colours follows, 3 × 2^(low bits + 1) bytes long
_PNG = b"\x89PNG\r\n\x1a\n"
# Of JPEG's markers those that begin a frame; the others in this range are tables.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_SEGMENTS_MAX = 1_000


def image_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height; None if the header is cut or has no size: the decoder decides."""
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


def is_animated(data: bytes) -> bool:
    """Return True for a file of several frames, and for one that cannot be judged in so many steps."""
    try:
        if data.startswith((b"GIF87a", b"GIF89a")):
            return _is_animated_gif(data)
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return _is_animated_png(data)
        if data.startswith(b"RIFF"):
            return _is_animated_webp(data)
    except (IndexError, struct.error):
        return False  # cut: the decoder judges
    return False


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
