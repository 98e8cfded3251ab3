"""What a projector's header says of the images that its model has to see whole. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from runner.core.layout import LaunchLayout

ARCHITECTURE = "clip"  # general.architecture of every projector
# Rows of the largest image of encoders that scale images into a range. Source: llama.cpp's clip.cpp.
_ROWS_MAX = {"gemma4v": 1120, "gemma4uv": 1120}


def whole_image_rows(metadata: Mapping[str, object]) -> int:
    """Rows of the largest image that has to be in one decode call; 0 where images may be split, or nobody knows.

    For counting before a load. A loaded projector is asked itself.
    """
    kind = metadata.get("clip.vision.projector_type") or metadata.get("clip.projector_type")
    if kind in _ROWS_MAX:
        return _ROWS_MAX[str(kind)]
    if kind != "gemma3":
        return 0
    image, patch = metadata.get("clip.vision.image_size"), metadata.get("clip.vision.patch_size")
    scale = metadata.get("clip.vision.projector.scale_factor", 4)
    if not (isinstance(image, int) and isinstance(patch, int) and isinstance(scale, int) and patch > 0 and scale > 0):
        return 0
    return (image // patch // scale) ** 2


def widened(layout: LaunchLayout, rows: int) -> LaunchLayout:
    """The layout with calls and graphs that hold an image of so many rows whole."""
    batch = max(layout.batch_tokens, rows)
    graph = max(layout.ubatch_tokens, rows) if layout.ubatch_tokens else 0
    return replace(layout, batch_tokens=batch, ubatch_tokens=graph)
