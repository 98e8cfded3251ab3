"""A projector beside a text model: loaded, tried on the largest image, counted; or given up with a warning."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.errors import BadModelFile, DeviceMemoryExhausted, InvalidRequest
from common.spec.layout import Layout
from common.telemetry.logs import get_logger
from runner.core.layout.projector import largest_graph_bytes, projector_kind, whole_image_rows
from runner.core.layout.refusals import MemoryClass, find_refusal
from runner.core.sequence.media import EncodedImage, PreparedImage
from runner.engine.bindings import ggml
from runner.engine.bindings.gguf_header import open_gguf_header
from runner.engine.bindings.library import engine_log
from runner.engine.llama.model import Model, load_failure
from runner.engine.media.projector import PLACE_DEPENDENT, EncodingFailed, Projector
from runner.engine.media.projector_memory import held_bytes, planned_bytes

log = get_logger()

# What a request may bring is larger, but projectors scale images down to about this.
LARGEST_SIDE_PIXELS = 2048
_SIDE_STEP_PIXELS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedProjector:
    """A projector that works.

    Attributes:
        device: ggml device that computes images; None: the CPU.
        whole_rows: the most rows of an image that must be in one call; 0 where images may be split.
    """

    projector: Projector
    path: Path
    device: int | None
    whole_rows: int

    def memory(self) -> dict[int | None, int]:
        """Bytes by ggml device; None is host RAM."""
        return held_bytes(self.projector.pointer, self.path, device=self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProjector:
    """Planned bytes of a projector by ggml device (None: host RAM), and `whole_rows` as above."""

    memory: Mapping[int | None, int]
    whole_rows: int


def plan_projector(path: Path | None, layout: Layout, device_pointers: Mapping[str, int]) -> PlannedProjector:
    """Count a projector without reading its weights or encoding anything.

    Raises:
        BadModelFile: not a file that the engine could read.
    """
    if path is None:
        return PlannedProjector(memory={}, whole_rows=0)
    with open_gguf_header(path) as header:
        metadata = header.metadata()
        weights_bytes = sum(tensor.size_bytes for tensor in header.tensors())
    device = device_pointers[layout.devices[0].device_id] if layout.devices else None
    counted = dict(planned_bytes(path, device=device))
    if device in counted:
        graph_bytes = max(0, counted[device] - weights_bytes)
        counted[device] = (counted[device] - graph_bytes) + largest_graph_bytes(
            graph_bytes, kind=projector_kind(metadata), context_tokens=layout.context_tokens
        )
    return PlannedProjector(memory=counted, whole_rows=whole_image_rows(metadata))


def load_projector(path: Path, model: Model, layout: Layout, device_pointers: Mapping[str, int]) -> LoadedProjector:
    """Load a projector onto the layout's first device.

    Raises:
        BadModelFile: it cannot be used with this model; the text model can.
        DeviceMemoryExhausted: the device has no room for it.
    """
    with open_gguf_header(path) as header:
        metadata = header.metadata()
    kind = projector_kind(metadata)
    if kind in PLACE_DEPENDENT:
        raise BadModelFile(f"{path.name}: projectors of type {kind} are not supported")
    device = device_pointers[layout.devices[0].device_id] if layout.devices else None
    if device is not None:
        # mtmd ends the process where the device refuses.
        wanted = plan_projector(path, layout, device_pointers).memory.get(device, 0)
        properties = ggml.DeviceProperties()
        ggml.device_properties(device, ctypes.byref(properties))
        if wanted > properties.memory_free:
            raise DeviceMemoryExhausted(
                f"{path.name}: device {layout.devices[0].device_id} has {properties.memory_free} bytes free, "
                f"{MemoryClass.PROJECTOR} needs {wanted}"
            )
    projector = Projector(path, model.pointer, device=device, threads=layout.threads)
    try:
        whole_rows = projector.largest_unit() if projector.whole else 0
        projector.whole_rows_max = whole_rows
    except InvalidRequest as error:
        projector.close()
        raise BadModelFile(f"{path.name}: {error.message}") from error
    return LoadedProjector(projector=projector, path=path, device=device, whole_rows=whole_rows)


def warm_up_projector(
    loaded: LoadedProjector, *, context_tokens: int, device_pointers: Mapping[str, int]
) -> EncodedImage:
    """Encode the largest image that a context takes, so that no later one needs more memory.

    Raises:
        BadModelFile: not even that can be encoded.
        DeviceMemoryExhausted, InsufficientMemory: its graph was refused.
    """
    engine_log.errors.clear()
    try:
        image = _largest_image(loaded.projector, context_tokens=context_tokens)
        if image is None:
            raise BadModelFile(f"{loaded.path.name}: no image fits into a context of {context_tokens} tokens")
        encoded = loaded.projector.encode_grey(image)
    except (EncodingFailed, InvalidRequest) as error:
        if find_refusal(engine_log.errors, phase=MemoryClass.PROJECTOR) is not None:
            raise load_failure(loaded.path, phase=MemoryClass.PROJECTOR, device_pointers=device_pointers) from error
        raise BadModelFile(f"{loaded.path.name}: it cannot encode an image: {error}") from error
    log.info("projector.ready", rows=len(image.inputs), width=image.header.width, height=image.header.height)
    return encoded


def _largest_image(projector: Projector, *, context_tokens: int) -> PreparedImage | None:
    for side in range(LARGEST_SIDE_PIXELS, 0, -_SIDE_STEP_PIXELS):
        image = projector.lay_out_size(side, side)
        if len(image.inputs) < context_tokens:
            return image
    return None
