"""The encoder thread: image files to embedding rows, while the engine thread goes on decoding."""

import contextvars
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TypeVar

from common.errors import PunaError
from common.telemetry.logs import get_logger
from runner.core.sequence.media import EncodedImage, PreparedImage
from runner.engine.media.image_decoder import ImageDecoder
from runner.engine.media.projector import EncodingCancelled, EncodingFailed, Projector

log = get_logger()

Warm = TypeVar("Warm")


@dataclass(slots=True, eq=False)
class EncodingJob:
    """An image on its way. `cancelled` is set by the engine thread and read by the encoder."""

    image: PreparedImage
    cancelled: bool = field(default=False)


@dataclass(frozen=True, slots=True)
class EncodingDone:
    """Result of a job: rows, or the reason for having none; neither if it was cancelled."""

    job: EncodingJob
    encoded: EncodedImage | None
    error: PunaError | None
    seconds: float = 0.0


class MediaEncoder:
    """One thread with the projector and the image decoder. Jobs are bounded by the sequences that may wait."""

    def __init__(self, projector: Projector, *, on_done: Callable[[EncodingDone], None]) -> None:
        """`on_done` is called on the encoder's thread."""
        self._projector = projector
        self._decoder = ImageDecoder()
        self._on_done = on_done
        self._jobs: queue.SimpleQueue[EncodingJob | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.encoded = 0  # images so far; a number for tests and metrics

    def start(self, warm_up: Callable[[], Warm]) -> Warm:
        """Run the warm-up on the encoder's thread, whose memory it is to fill, then begin to take jobs.

        Returns what the warm-up returned.

        Raises:
            PunaError: as the warm-up raised it; the thread has ended, and the projector is the caller's again.
        """
        self._decoder.start()
        warmed: Future[Warm] = Future()
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._run, warm_up, warmed), name="encoder", daemon=True
        )
        self._thread.start()
        try:
            return warmed.result()
        except BaseException:
            self._thread.join()
            self._decoder.close()
            raise

    def submit(self, job: EncodingJob) -> None:
        """Encode an image; `on_done` hears of it exactly once."""
        self._jobs.put(job)

    def close(self) -> None:
        """End the thread after the image that it is at."""
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()
        self._decoder.close()

    def _run(self, warm_up: Callable[[], Warm], warmed: "Future[Warm]") -> None:
        try:
            warmed.set_result(warm_up())
        except BaseException as error:  # noqa: BLE001  # the starter of the thread waits for it
            warmed.set_exception(error)
            return
        while (job := self._jobs.get()) is not None:
            started_s = time.monotonic()
            done = self._encode(job)
            self._on_done(replace(done, seconds=time.monotonic() - started_s))

    def _encode(self, job: EncodingJob) -> EncodingDone:
        if job.cancelled:
            return EncodingDone(job, None, None)
        try:
            pixels = self._decoder.decode(job.image.data, job.image.header)
            encoded = self._projector.encode(job.image, pixels, cancelled=lambda: job.cancelled)
        except EncodingCancelled:
            return EncodingDone(job, None, None)
        except PunaError as error:
            return EncodingDone(job, None, error)
        except EncodingFailed as error:
            log.error("image.not_encoded", text=str(error))
            return EncodingDone(job, None, PunaError("an image could not be encoded"))
        except BaseException as error:  # the sequences that wait must hear of it
            log.error("image.not_encoded", kind=type(error).__name__, text=str(error), exc_info=error)
            return EncodingDone(job, None, PunaError("an image could not be encoded"))
        self.encoded += 1
        return EncodingDone(job, encoded, None)
