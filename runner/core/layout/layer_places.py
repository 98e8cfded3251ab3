"""Place of each layer of a model under a layout, and the layer of each tensor. Pure.

Layers are the blocks 0…L-1 and the output layer L. llama.cpp keeps a head of blocks in host RAM and gives the rest to
the devices in contiguous ranges; token embeddings always stay in host RAM.
"""

import re
from dataclasses import dataclass

from common.errors import InvalidRequest
from common.spec.layout import Layout

INPUT_LAYER = -1
# Stored once, used by every block: each device with blocks has its own copy.
EVERY_BLOCK = -2
OUTPUT_LAYER = -3
_INPUT_NAMES = ("token_embd", "token_types", "position_embd", "per_layer_token_embd")
_SHARED_NAMES = ("rope_freqs", "rope_factors")
_BLOCK = re.compile(r"blk\.(\d+)\.")
_EXPERTS = re.compile(r"\.ffn_(up|down|gate_up|gate)_(ch|)exps\b")
# As `_EXPERTS`, for some blocks; llama.cpp searches for it in a tensor's name.
EXPERTS_PATTERN = r"^blk\.({blocks})\.ffn_(up|down|gate_up|gate)_(ch|)exps\."
OUTPUT_PATTERN = r"^(output(_norm)?|token_embd)\."  # a tied output is the token table


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlaces:
    """`devices` has for each layer the index of its device in the layout, or None for host RAM."""

    devices: tuple[int | None, ...]
    experts_on_host: int = 0

    @property
    def block_count(self) -> int:
        """Layers without the output layer."""
        return len(self.devices) - 1

    def place_of(self, tensor: str) -> int | None:
        """Index of the device that holds a tensor of one layer; None: host RAM."""
        layer = layer_of(tensor)
        if layer == INPUT_LAYER or (0 <= layer < self.experts_on_host and is_expert(tensor)):
            return None
        return self.devices[-1 if layer == OUTPUT_LAYER else max(layer, 0)]


def layer_of(tensor: str) -> int:
    """Return the block of a tensor, or one of the constants above."""
    block = _BLOCK.match(tensor)
    if block is not None:
        return int(block[1])
    if tensor.startswith(_INPUT_NAMES):
        return INPUT_LAYER
    if tensor.startswith(_SHARED_NAMES):
        return EVERY_BLOCK
    return OUTPUT_LAYER


def is_expert(tensor: str) -> bool:
    """Return True if a tensor holds the experts of a block."""
    return _EXPERTS.search(tensor) is not None


def offloaded_layers(layout: Layout) -> tuple[int, ...]:
    """Layers for each device as llama.cpp counts them: it counts the output layer even where it is sent to the host."""
    counts = [device.layer_count for device in layout.devices]
    if layout.output_on_host and any(counts):
        counts[-1] += 1
    return tuple(counts)


def place_layers(layout: Layout, *, block_count: int) -> LayerPlaces:
    """Return the place of each layer.

    Raises:
        InvalidRequest: the layout spreads more layers than the model has. On one device that means all of them.
    """
    layers = block_count + 1
    counts = list(offloaded_layers(layout))
    total = sum(counts)
    if total > layers:
        if len(counts) > 1:
            raise InvalidRequest(
                f"the layout puts {total} layers on its devices, the model has {layers} with its output layer",
                param="devices",
            )
        total, counts = layers, [layers]
    devices: list[int | None] = [None] * (layers - total)
    for index, count in enumerate(counts):
        devices += [index] * count
    if layout.output_on_host:
        devices[-1] = None
    return LayerPlaces(devices=tuple(devices), experts_on_host=layout.experts_on_host)
