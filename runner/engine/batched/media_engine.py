"""Vision of the engine: projector, encoder thread, the loop's side of both; empty for a model without vision."""

from collections.abc import Callable
from functools import partial

from common.errors import BadModelFile, PunaError
from runner.core.sequence.media import PreparedImage
from runner.engine.batched.media_rows import MediaRows
from runner.engine.contract.engine import refuse_image
from runner.engine.llama.context import Context
from runner.engine.llama.launch import Launch
from runner.engine.llama.model import Model
from runner.engine.media.media_encoder import EncodingDone, MediaEncoder
from runner.engine.media.media_loading import held_bytes, load_projector, warm_up_projector
from runner.engine.media.media_store import MediaStore
from runner.engine.media.projector import Projector


class Vision:
    """Opened between model and context, connected once the context is there. A projector that fails is a warning."""

    def __init__(self) -> None:
        self._projector: Projector | None = None
        self.encoder: MediaEncoder | None = None
        self.read: Callable[[bytes], PreparedImage] = refuse_image

    @property
    def whole_rows(self) -> int:
        """The most rows of an image that must be in one call; 0 where images may be split."""
        return (self._projector.whole_rows or 0) if self._projector is not None else 0

    def open(self, launch: Launch, model: Model, warnings: list[str]) -> None:
        """Load the projector, if there is one.

        Raises:
            DeviceMemoryExhausted: the device has no room for it.
        """
        if launch.files.projector is None:
            return
        try:
            self._projector = load_projector(launch.files.projector, model, launch.layout, launch.device_pointers)
        except BadModelFile as error:
            warnings.append(f"images are refused: {error.message}")

    def connect(
        self,
        launch: Launch,
        context: Context,
        *,
        context_tokens: int,
        on_done: Callable[[EncodingDone], None],
        warnings: list[str],
    ) -> MediaRows | None:
        """Start the encoder thread and try everything out on the largest image.

        Raises:
            DeviceMemoryExhausted, InsufficientMemory: no room for the largest image's graph.
        """
        projector = self._projector
        if projector is None:
            return None
        encoder = MediaEncoder(projector, on_done=on_done)
        try:
            image = encoder.start(
                partial(
                    warm_up_projector, projector, context_tokens=context_tokens, device_pointers=launch.device_pointers
                )
            )
        except PunaError as error:
            self.close()
            if not isinstance(error, BadModelFile):
                raise
            warnings.append(f"images are refused: {error.message}")
            return None
        self.encoder = encoder
        self.read = projector.read
        media = MediaRows(
            context,
            MediaStore(encoder.submit),
            components=projector.components,
            whole=projector.whole,
            batch_tokens=launch.layout.batch_tokens,
        )
        media.warm_up(image)
        return media

    def memory(self) -> dict[int | None, int]:
        """Return the projector's bytes by ggml device; None is host RAM."""
        return held_bytes(self._projector) if self._projector is not None else {}

    def close(self) -> None:
        """End the encoder thread and free the projector; before context and model."""
        if self.encoder is not None:
            self.encoder.close()
        if self._projector is not None:
            self._projector.close()
        self.encoder = self._projector = None
