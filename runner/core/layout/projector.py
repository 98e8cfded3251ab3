"""Images that a model has to attend to as a whole, from its projector's header. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from common.spec.layout import Layout

# Encoders that scale images into a range: rows of the image that mtmd counts a graph for, and of the largest one.
# Source: set_warmup_n_tokens and set_limit_image_tokens in llama.cpp's clip.cpp.
_ROWS = {
    "gemma4uv": (256, 1120),
    "gemma4v": (256, 1120),
    "glm4v": (2116, 4096),
    "kimivl": (256, 1024),
    "ling3vl": (2116, 4096),
    "minimax_m3": (256, 576),
    "muse-glimmer": (1024, 4096),
    "pixtral": (256, 1024),
    "qwen2.5vl_merger": (2116, 4096),
    "qwen2vl_merger": (2116, 4096),
    "qwen3vl_merger": (2116, 4096),
}
_WHOLE = frozenset({"gemma4v", "gemma4uv"})


def projector_kind(metadata: Mapping[str, object]) -> str:
    """Return the kind of projector that the header names."""
    return str(metadata.get("clip.vision.projector_type") or metadata.get("clip.projector_type") or "")


def largest_graph_bytes(graph_bytes: int, *, kind: str, context_tokens: int) -> int:
    """Scale the graph of mtmd's own first image linearly to that of the largest image that a context takes."""
    if kind not in _ROWS:
        return graph_bytes
    counted, largest = _ROWS[kind]
    return graph_bytes * min(largest, context_tokens) // counted


def whole_image_rows(metadata: Mapping[str, object]) -> int:
    """Rows of the largest image that has to be in one decode call; 0 where images may be split, or it is unknown.

    For counting before a load. A loaded projector is asked itself.
    """
    kind = projector_kind(metadata)
    if kind in _WHOLE:
        return _ROWS[kind][1]
    if kind != "gemma3":
        return 0
    image, patch = metadata.get("clip.vision.image_size"), metadata.get("clip.vision.patch_size")
    scale = metadata.get("clip.vision.projector.scale_factor", 4)
    if not (isinstance(image, int) and isinstance(patch, int) and isinstance(scale, int) and patch > 0 and scale > 0):
        return 0
    return (image // patch // scale) ** 2


def widened(layout: Layout, rows: int) -> Layout:
    """Return the layout with calls and graphs that hold an image of so many rows whole."""
    batch = max(layout.batch_tokens, rows)
    graph = max(layout.ubatch_tokens, rows) if layout.ubatch_tokens else 0
    return replace(layout, batch_tokens=batch, ubatch_tokens=graph)
