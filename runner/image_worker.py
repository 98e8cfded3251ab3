"""Decode images in a process of its own; run as a file: `python -I image_worker.py`.

Decoders of image formats are where hostile bytes meet C code. So each image is decoded in a child that is thrown away
afterwards, which may neither open files nor run for long nor take much memory. This process only reads requests, forks,
and passes pixels on; it needs Pillow and one module of `common` only, so that it starts quickly and holds no secrets.

In: ">8sIII" format, width, height, length, then the file. Out: ">BI" status and length, then the pixels (status 0,
uint8[height, width, 3]) or why there are none (status 1).
"""

import ctypes
import importlib.util
import io
import os
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import BinaryIO

from PIL import Image

REQUEST = struct.Struct(">8sIII")
ANSWER = struct.Struct(">BI")
DECODED, REFUSED = 0, 1

CPU_S_MAX = 10
MEMORY_BYTES_MAX = 1024 * 1024 * 1024
OPEN_FILES_MAX = 32
PIXEL_BYTES_MAX = 128 * 1024 * 1024
REASON_BYTES_MAX = 200

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl
# By its path: in a confined runner, the folder of this package cannot be listed.
_SANDBOX_PATH = Path(__file__).resolve().parents[1] / "common" / "sandbox" / "confinement.py"
_sandbox_found = importlib.util.spec_from_file_location("sandbox", _SANDBOX_PATH)
assert _sandbox_found is not None
assert _sandbox_found.loader is not None
sandbox = importlib.util.module_from_spec(_sandbox_found)
_sandbox_found.loader.exec_module(sandbox)


def limit_child(library: ctypes.CDLL) -> None:
    """Give up what a decoder never needs."""
    library.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_FSIZE, (PIXEL_BYTES_MAX, PIXEL_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES_MAX, OPEN_FILES_MAX))
    sandbox.confine_worker(reads_libraries=False)


def decode(data: bytes, form: str, width: int, height: int) -> bytes:
    """Return the first frame as RGB; transparency is ignored, as llama.cpp's own decoder does.

    Raises:
        ValueError, OSError and whatever else Pillow raises: the file is damaged.
    """
    with Image.open(io.BytesIO(data), formats=[form]) as file:
        if file.size != (width, height):
            raise ValueError("its header and its contents differ in size")
        file.load()
        if file.mode.startswith("I"):  # 16 bits a sample; converting would clip instead of scale
            return file.point(lambda value: value * (1 / 256) + 0).convert("L").convert("RGB").tobytes()
        return file.convert("RGB").tobytes()


def decode_in_child(data: bytes, form: str, width: int, height: int, result: int, library: ctypes.CDLL) -> int:
    """Body of the child: pixels or a reason into the file `result`; the exit status says which."""
    limit_child(library)
    try:
        pixels = decode(data, form, width, height)
    except MemoryError:
        os.write(result, b"it takes too much memory to decode")
        return REFUSED
    except Exception as error:  # noqa: BLE001  # whatever a decoder raises, the file is at fault
        os.write(result, str(error).encode(errors="replace")[:REASON_BYTES_MAX])
        return REFUSED
    view = memoryview(pixels)
    while view:
        view = view[os.write(result, view) :]
    return DECODED


def answer(sink: BinaryIO, status: int, result: int) -> None:
    """Pass on what a child wrote."""
    length = os.fstat(result).st_size
    sink.write(ANSWER.pack(status, length))
    sink.flush()
    offset = 0
    while offset < length:
        offset += os.sendfile(sink.fileno(), result, offset, length - offset)


def load_decoders() -> None:
    """Use each decoder once: the children may open no files any more, so every module has to be there before."""
    Image.init()
    for form, mode in (("PNG", "P"), ("PNG", "I;16"), ("JPEG", "CMYK"), ("BMP", "RGB"), ("GIF", "P"), ("WEBP", "RGBA")):
        file = io.BytesIO()
        Image.new(mode, (2, 2)).save(file, form)
        decode(file.getvalue(), form, 2, 2)


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests until the input ends."""
    library = ctypes.CDLL(None, use_errno=True)
    while len(header := source.read(REQUEST.size)) == REQUEST.size:
        name, width, height, length = REQUEST.unpack(header)
        data = source.read(length)
        result = os.memfd_create("pixels")
        child = os.fork()
        if child == 0:
            status = REFUSED
            try:
                status = decode_in_child(data, name.rstrip(b"\0").decode(), width, height, result, library)
            finally:
                os._exit(status)
        _, ended = os.waitpid(child, 0)
        if not os.WIFEXITED(ended):
            os.ftruncate(result, 0)
            os.pwrite(result, b"its decoder was ended by a limit or a crash", 0)
        answer(sink, DECODED if ended == 0 else REFUSED, result)
        os.close(result)


if __name__ == "__main__":
    # The runner ends this process itself; a Ctrl-C in the terminal is not for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sandbox.forbid_core_files()
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    # Pixels are bounded by the caller, who has read the header.
    Image.MAX_IMAGE_PIXELS = None
    load_decoders()
    serve(sys.stdin.buffer, sys.stdout.buffer)
