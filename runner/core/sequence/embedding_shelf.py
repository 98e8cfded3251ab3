"""Cache of image embeddings: those in use, and the few used last. Pure bookkeeping."""

from collections import OrderedDict

from runner.core.sequence.media import EncodedImage

KEPT_IMAGES = 4
KEPT_BYTES_MAX = 256 * 1024 * 1024


class EmbeddingShelf:
    """Encoded images by their hash. One thread owns it.

    An image is *live* while a sequence uses it. An unused one is kept only within the limits, newest last.
    """

    def __init__(self, *, images_max: int = KEPT_IMAGES, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._images_max = images_max
        self._bytes_max = bytes_max
        self._live: dict[bytes, EncodedImage] = {}
        self._users: dict[bytes, set[int]] = {}
        self._kept: OrderedDict[bytes, EncodedImage] = OrderedDict()

    @property
    def live(self) -> int:
        """Return the number of images that a sequence uses or waits for."""
        return len(self._users)

    @property
    def kept(self) -> int:
        """Return the number of images that are unused but kept for reuse."""
        return len(self._kept)

    def use(self, image_hash: bytes, sequence_id: int) -> EncodedImage | None:
        """Return the image's rows if they are there, and mark it as live in any case."""
        self._users.setdefault(image_hash, set()).add(sequence_id)
        kept = self._kept.pop(image_hash, None)
        if kept is not None:
            self._live[image_hash] = kept
        return self._live.get(image_hash)

    def put(self, image_hash: bytes, image: EncodedImage) -> bool:
        """Store an encoded image; False if no sequence wants it any more, so that it is not kept."""
        if image_hash not in self._users:
            return False
        self._live[image_hash] = image
        return True

    def leave(self, image_hash: bytes, sequence_id: int) -> bool:
        """Release an image of a sequence; True if it was the last one that needed it."""
        users = self._users.get(image_hash)
        if users is None or sequence_id not in users:
            return False
        users.discard(sequence_id)
        if users:
            return False
        del self._users[image_hash]
        image = self._live.pop(image_hash, None)
        if image is not None:
            self._keep(image_hash, image)
        return True

    def users(self, image_hash: bytes) -> frozenset[int]:
        """Return the sequences that use an image or wait for it."""
        return frozenset(self._users.get(image_hash, ()))

    def _keep(self, image_hash: bytes, image: EncodedImage) -> None:
        self._kept[image_hash] = image
        while len(self._kept) > self._images_max or sum(kept.size_bytes for kept in self._kept.values()) > (
            self._bytes_max
        ):
            self._kept.popitem(last=False)
