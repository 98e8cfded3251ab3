"""Frames of an image as its file declares them, decoding nothing. Pure."""

import struct

from common.image_file import ImageFormat, find_format

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
