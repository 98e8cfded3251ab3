"""A projector beside a text model: loaded, tried on the largest image, counted; or given up with a warning.

mtmd reports its memory by device as a std::map by value (`cpp_map.py`). Where the C++ library is not GNU's, the
file's size with a margin stands in.
Source: `mtmd_get_memory_usage` in mtmd.h and `clip_get_mem_usage` in clip.h of llama.cpp.
"""

import ctypes
from collections.abc import Mapping
from ctypes import c_size_t, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp.mtmd_cpp as mtmd

from common.errors import BadModelFile, DeviceMemoryExhausted, InvalidRequest
from common.spec.layout import Layout
from common.telemetry.logs import get_logger
from runner.core.layout.load_log import MemoryClass, find_refusal
from runner.core.layout.projector import largest_graph_bytes, projector_kind, whole_image_rows
from runner.core.sequence.media import EncodedImage, PreparedImage
from runner.engine.bindings import cpp_map, ggml
from runner.engine.bindings.gguf_header import open_gguf_header
from runner.engine.bindings.library import engine_log
from runner.engine.llama.model import Model, load_failure
from runner.engine.media.projector import PLACE_DEPENDENT, EncodingFailed, Projector, projector_parameters

log = get_logger()

# What a request may bring is larger, but projectors scale images down to about this.
LARGEST_SIDE_PIXELS = 2048
_SIDE_STEP_PIXELS = 32


_PLANNED = "_Z21mtmd_get_memory_usagePKc19mtmd_context_params"
_LOADED = "_Z18clip_get_mem_usagePK8clip_ctx"
_NODES_MAX = 16  # devices of one projector: one or two
# The graph of an image is small beside the weights of real encoders, but not nothing.
GRAPH_MARGIN = 0.25


class _Node(cpp_map.MapNode):
    """Of a std::map<ggml_backend_dev_t, size_t>."""

    _fields_ = (("device", c_void_p), ("bytes", c_size_t))


def planned_bytes(path: Path, *, device: int | None) -> dict[int | None, int]:
    """Return the bytes that a projector will take, without reading its weights. By ggml device; None is host RAM.

    The graph is that of mtmd's own first image, which for encoders of any image size is smaller than the largest one.
    """
    function = cpp_map.bind(mtmd._libmtmd, _PLANNED, ctypes.c_char_p, mtmd.mtmd_context_params)
    if function is not None:
        parameters = projector_parameters(device, threads=1)
        parameters.warmup = True  # sizes the graph; with these functions nothing is allocated
        counted = _by_device(function, str(path).encode(), parameters)
        if counted:
            return counted
    return {device: round(path.stat().st_size * (1 + GRAPH_MARGIN))}


def held_bytes(projector: Projector) -> dict[int | None, int]:
    """Return the bytes of a loaded projector after its largest image was encoded. By ggml device; None is host RAM."""
    function = cpp_map.bind(mtmd._libmtmd, _LOADED, c_void_p)
    if function is not None:
        encoder = c_void_p.from_address(projector.pointer).value  # the first member of mtmd_context
        counted = _by_device(function, encoder)
        if sum(counted.values()) >= projector.path.stat().st_size // 2:  # else the member has moved
            return counted
    return planned_bytes(projector.path, device=projector.device)


def _by_device(function: ggml.Function, *arguments: Any) -> dict[int | None, int]:
    """CPU memory of any kind is host RAM."""
    result: dict[int | None, int] = {}
    for node in cpp_map.call(function, _Node, *arguments, nodes_max=_NODES_MAX) or ():
        key = None if ggml.device_type(node.device) == ggml.DEVICE_TYPE_CPU else node.device
        result[key] = result.get(key, 0) + node.bytes
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProjector:
    """Planned bytes of a projector by ggml device (None: host RAM), and `Projector.whole_rows`."""

    memory: Mapping[int | None, int] = field(default_factory=dict)
    whole_rows: int = 0


def plan_projector(path: Path | None, layout: Layout, device_pointers: Mapping[str, int]) -> PlannedProjector:
    """Count a projector without reading its weights or encoding anything.

    Raises:
        BadModelFile: not a file that the engine could read.
    """
    if path is None:
        return PlannedProjector()
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


def load_projector(path: Path, model: Model, layout: Layout, device_pointers: Mapping[str, int]) -> Projector:
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
        projector.whole_rows = projector.largest_unit() if projector.whole else 0
    except InvalidRequest as error:
        projector.close()
        raise BadModelFile(f"{path.name}: {error.message}") from error
    return projector


def warm_up_projector(projector: Projector, *, context_tokens: int, device_pointers: Mapping[str, int]) -> EncodedImage:
    """Encode the largest image that a context takes, so that no later one needs more memory.

    Raises:
        BadModelFile: not even that can be encoded.
        DeviceMemoryExhausted, InsufficientMemory: its graph was refused.
    """
    engine_log.errors.clear()
    try:
        image = _largest_image(projector, context_tokens=context_tokens)
        if image is None:
            raise BadModelFile(f"{projector.path.name}: no image fits into a context of {context_tokens} tokens")
        encoded = projector.encode_grey(image)
    except (EncodingFailed, InvalidRequest) as error:
        if find_refusal(engine_log.errors, phase=MemoryClass.PROJECTOR) is not None:
            raise load_failure(projector.path, phase=MemoryClass.PROJECTOR, device_pointers=device_pointers) from error
        raise BadModelFile(f"{projector.path.name}: it cannot encode an image: {error}") from error
    log.info("projector.ready", rows=len(image.inputs), width=image.header.width, height=image.header.height)
    return encoded


def _largest_image(projector: Projector, *, context_tokens: int) -> PreparedImage | None:
    for side in range(LARGEST_SIDE_PIXELS, 0, -_SIDE_STEP_PIXELS):
        image = projector.lay_out_size(side, side)
        if len(image.inputs) < context_tokens:
            return image
    return None
