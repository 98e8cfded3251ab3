"""Pixels of image files, from a process that may die of them (`runner.image_worker`)."""

import contextlib
import io
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, cast

from common.errors import InvalidRequest
from common.image_file import ImageHeader
from common.telemetry.logs import get_logger

log = get_logger()

WORKER_PATH = Path(__file__).resolve().parents[2] / "image_worker.py"
# The kernel limits CPU time; this catches a worker that is stopped or starved.
WALL_S_MAX = 30.0
_REQUEST = struct.Struct(">8sIII")
_ANSWER = struct.Struct(">BI")
_REASON_BYTES_MAX = 1024


class ImageDecoder:
    """One worker process, started when it is first needed and again after it died. One thread uses it."""

    def __init__(self, *, wall_s: float = WALL_S_MAX) -> None:
        self._wall_s = wall_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the worker ahead of the first image; it needs a moment to import its decoders."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(WORKER_PATH)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"LC_ALL": "C.UTF-8"},
            )

    def decode(self, data: bytes, header: ImageHeader) -> bytearray:
        """uint8[height, width, 3] of an image whose header was read.

        Raises:
            InvalidRequest: damaged, or nothing that could be decoded within the limits.
        """
        request = _REQUEST.pack(header.format.encode(), header.width, header.height, len(data))
        try:
            status, answer = self._exchange(request + data, header.width * header.height * 3)
        except (OSError, EOFError) as error:
            log.warning("image.worker_lost", kind=type(error).__name__)
            self.close()
            raise InvalidRequest("an image could not be decoded within its limits", param="images") from error
        if status:
            reason = answer.decode(errors="replace")
            raise InvalidRequest(f"an image of type {header.format} cannot be decoded: {reason}", param="images")
        if len(answer) != header.width * header.height * 3:
            self.close()
            raise InvalidRequest("an image has another size than its header says", param="images")
        return answer

    def close(self) -> None:
        """End the worker and reap it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()

    def _exchange(self, request: bytes, pixel_bytes: int) -> tuple[int, bytearray]:
        self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # Its end is the end of the exchange, so one timer limits every read and write.
        timer = threading.Timer(self._wall_s, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            status, length = _ANSWER.unpack(_read(self._process.stdout, _ANSWER.size))
            if length > max(pixel_bytes, _REASON_BYTES_MAX):
                raise EOFError("an answer that no image has")
            return status, _read(self._process.stdout, length)
        finally:
            timer.cancel()


def _read(source: IO[bytes], length: int) -> bytearray:
    data = bytearray(length)
    if cast("io.BufferedReader", source).readinto(data) < length:
        raise EOFError("the worker is gone")
    return data
