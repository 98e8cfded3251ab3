"""Whether an image file has more than one frame, read from how the file is laid out, decoding nothing. Pure."""

import struct

# As large a GIF as is taken has 41,000 blocks where its encoder fills them; to look at more would take too long.
_GIF_BLOCKS_MAX = 50_000
_CHUNKS_MAX = 10_000
_GIF_EXTENSION, _GIF_FRAME = 0x21, 0x2C
_GIF_TABLE = 0x80  # of the flags: a table of colours follows, 3 × 2^(low bits + 1) bytes long


def is_animated(data: bytes) -> bool:
    """True for a file of several frames, and for one that cannot be judged in so many steps."""
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
    """Its count of frames stands before its pixels."""
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
