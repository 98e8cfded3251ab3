"""Images that sequences wait for or use. The engine thread owns it and never waits."""

from collections.abc import Callable

from common.errors import PunaError
from runner.core.sequence.embedding_shelf import EmbeddingShelf
from runner.core.sequence.media import EncodedUnit, PreparedImage
from runner.engine.media.media_encoder import EncodingDone, EncodingJob


class MediaStore:
    """Rows on demand: asked for at once, there later, gone when no sequence needs them."""

    def __init__(self, submit: Callable[[EncodingJob], None]) -> None:
        """`submit` hands a job to the encoder, which answers through `take_in`."""
        self._submit = submit
        self.shelf = EmbeddingShelf()
        self._jobs: dict[bytes, EncodingJob] = {}
        self._failures: dict[int, PunaError] = {}

    def unit(self, image: PreparedImage, part: int, sequence_id: int) -> EncodedUnit | None:
        """Return the rows of a part; None while they are computed, which the first question starts."""
        encoded = self.shelf.use(image.hash, sequence_id)
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
            self.shelf.put(image_hash, done.encoded)
        elif done.error is not None:
            for sequence_id in self.shelf.users(image_hash):
                self._failures[sequence_id] = done.error

    def leave(self, image: PreparedImage, sequence_id: int) -> None:
        """Release a sequence's image; one without a waiter is not computed."""
        if self.shelf.leave(image.hash, sequence_id):
            job = self._jobs.pop(image.hash, None)
            if job is not None:
                job.cancelled = True

    def forget(self, images: tuple[PreparedImage, ...], sequence_id: int) -> None:
        """Release the images of a sequence that is gone."""
        self._failures.pop(sequence_id, None)
        for image in images:
            self.leave(image, sequence_id)
