"""Images that sequences wait for or use, and the few used last. The engine thread owns them and never waits."""

from collections import OrderedDict
from collections.abc import Callable

from common.errors import PunaError
from runner.core.sequence.media import EncodedImage, EncodedUnit, PreparedImage
from runner.engine.media.media_encoder import EncodingDone, EncodingJob

KEPT_IMAGES = 4
KEPT_BYTES_MAX = 256 * 1024 * 1024


class MediaStore:
    """Rows on demand: asked for at once, there later. Those that no sequence needs are kept only within the limits."""

    def __init__(
        self,
        submit: Callable[[EncodingJob], None],
        *,
        images_max: int = KEPT_IMAGES,
        bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        """`submit` hands a job to the encoder, which answers through `take_in`."""
        self._submit = submit
        self._images_max = images_max
        self._bytes_max = bytes_max
        self._users: dict[bytes, set[int]] = {}  # by hash: the sequences that use an image or wait for it
        self._jobs: dict[bytes, EncodingJob] = {}
        self._live: dict[bytes, EncodedImage] = {}
        self._kept: OrderedDict[bytes, EncodedImage] = OrderedDict()  # without a user, the newest last
        self._failures: dict[int, PunaError] = {}

    @property
    def live(self) -> int:
        """Return the number of images that a sequence uses or waits for."""
        return len(self._users)

    @property
    def kept(self) -> int:
        """Return the number of images that are unused but kept for reuse."""
        return len(self._kept)

    def unit(self, image: PreparedImage, part: int, sequence_id: int) -> EncodedUnit | None:
        """Return the rows of a part; None while they are computed, which the first question starts."""
        self._users.setdefault(image.hash, set()).add(sequence_id)
        if image.hash in self._kept:
            self._live[image.hash] = self._kept.pop(image.hash)
        encoded = self._live.get(image.hash)
        if encoded is not None:
            return encoded.units[part]
        if image.hash not in self._jobs:
            job = self._jobs[image.hash] = EncodingJob(image)
            self._submit(job)
        return None

    def failure(self, sequence_id: int) -> PunaError | None:
        """Return the error for which an image of a sequence has no rows, or None."""
        return self._failures.get(sequence_id)

    def take_in(self, done: EncodingDone) -> None:
        """Store the encoder's answer."""
        image_hash = done.job.image.hash
        if self._jobs.get(image_hash) is not done.job:
            return  # cancelled; another job for the same image may be on its way
        del self._jobs[image_hash]
        if done.encoded is not None:
            self._live[image_hash] = done.encoded
        elif done.error is not None:
            for sequence_id in self._users[image_hash]:
                self._failures[sequence_id] = done.error

    def leave(self, image: PreparedImage, sequence_id: int) -> None:
        """Release a sequence's image; one without a waiter is not computed."""
        users = self._users.get(image.hash, set())
        if sequence_id not in users:
            return
        users.discard(sequence_id)
        if users:
            return
        del self._users[image.hash]
        job = self._jobs.pop(image.hash, None)
        if job is not None:
            job.cancelled = True
        encoded = self._live.pop(image.hash, None)
        if encoded is not None:
            self._kept[image.hash] = encoded
            while self.kept > self._images_max or sum(one.size_bytes for one in self._kept.values()) > self._bytes_max:
                self._kept.popitem(last=False)

    def forget(self, images: tuple[PreparedImage, ...], sequence_id: int) -> None:
        """Release the images of a sequence that is gone."""
        self._failures.pop(sequence_id, None)
        for image in images:
            self.leave(image, sequence_id)
