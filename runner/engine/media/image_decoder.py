"""Pixels of image files, from a process that may die of them (`runner.image_worker`)."""

import contextlib
import os
import select
import struct
import subprocess
import sys
import time
from pathlib import Path

from common.errors import InvalidRequest
from common.image_file import ImageHeader
from common.telemetry.logs import get_logger

log = get_logger()

WORKER_PATH = Path(__file__).resolve().parents[2] / "image_worker.py"
# The kernel limits CPU time; this catches a worker that is stopped or starved.
WALL_S_MAX = 30.0
_REQUEST = struct.Struct(">8sIII")
_ANSWER = struct.Struct(">BI")
_READ_BYTES = 1024 * 1024
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
                bufsize=0,
            )

    def decode(self, data: bytes, header: ImageHeader) -> bytearray:
        """uint8[height, width, 3] of an image whose header was read.

        Raises:
            InvalidRequest: damaged, or nothing that could be decoded within the limits.
        """
        request = _REQUEST.pack(header.format.encode(), header.width, header.height, len(data))
        try:
            status, answer = self._exchange((request, data), header.width * header.height * 3)
        except (OSError, EOFError, TimeoutError) as error:
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

    def _exchange(self, request: tuple[bytes, ...], pixel_bytes: int) -> tuple[int, bytearray]:
        self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        until = time.monotonic() + self._wall_s
        sink, source = self._process.stdin.fileno(), self._process.stdout.fileno()
        for part in request:
            view = memoryview(part)
            while view:
                _wait(sink, until, writing=True)
                view = view[os.write(sink, view[: select.PIPE_BUF]) :]
        status, length = _ANSWER.unpack(_read(source, _ANSWER.size, until))
        if length > max(pixel_bytes, _REASON_BYTES_MAX):
            raise EOFError("an answer that no image has")
        return status, _read(source, length, until)


def _read(source: int, length: int, until: float) -> bytearray:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        _wait(source, until, writing=False)
        part = os.read(source, min(len(view), _READ_BYTES))
        if not part:
            raise EOFError("the worker is gone")
        view[: len(part)] = part
        view = view[len(part) :]
    return data


def _wait(pipe: int, until: float, *, writing: bool) -> None:
    poller = select.poll()
    poller.register(pipe, select.POLLOUT if writing else select.POLLIN)
    if not poller.poll(max(0.0, until - time.monotonic()) * 1000):
        raise TimeoutError("the worker does not answer")
