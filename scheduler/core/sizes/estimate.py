"""Estimates of a layout by formulas, where nothing was measured; marked wherever they are shown."""

from dataclasses import replace

from common.spec.layout import Layout
from scheduler.core.sizes.layers import LayerSizes
from scheduler.core.values.facts import CACHE_SHARE_UNKNOWN, ModelFacts
from scheduler.core.values.memory import MIB, DeviceBytes, MemoryOrigin, MemoryReport

CELL_STEP = 256  # llama.cpp pads contexts to this
# What a runner keeps in host RAM of prompts and states, beside the caches: so many times the cache, at most so much.
# As in `runner.core.layout.layout`; a test holds them together.
COPIES_MAX = 10
COPIES_BYTES_MAX = 256 * MIB
_ROW_VALUE_BYTES = 4
# Bytes of one element, as (bytes, elements) of a block.
CACHE_TYPES = {"": (2, 1), "f16": (2, 1), "q8_0": (34, 32), "q4_0": (18, 32)}


def estimate_report(sizes: LayerSizes, graph_bytes: int, layout: Layout, *, projector_bytes: int = 0) -> MemoryReport:
    """Estimate the report of a layout; every device with layers has a graph. A projector is on the first."""
    layers = len(sizes.weights)
    on_host = [0] * layers
    for layer in range(min(layout.experts_on_host, len(sizes.experts))):
        on_host[layer] = sizes.experts[layer]
    devices, taken = list[DeviceBytes](), set[int]()
    for part, (start, stop) in zip(layout.devices, layer_ranges(layout, layers - 1), strict=True):
        mine = range(start, stop)
        taken.update(mine)
        own = tuple(sizes.weights[layer] - on_host[layer] if layer in mine else 0 for layer in range(layers))
        cells = tuple(sizes.caches[layer] if layer in mine else 0 for layer in range(layers))
        devices.append(
            DeviceBytes(
                device_id=part.device_id,
                node_id=part.node_id,
                weights_bytes=sum(own),
                cache_bytes=sum(cells),
                graph_bytes=graph_bytes,
                projector_bytes=0 if devices else projector_bytes,
                layer_weights_bytes=own,
                layer_cache_bytes=cells,
            )
        )
    left = tuple(on_host[layer] if layer in taken else sizes.weights[layer] for layer in range(layers))
    cells = tuple(
        (0 if layer in taken else sizes.caches[layer]) + (sizes.beside_bytes if layer == layers - 1 else 0)
        for layer in range(layers)
    )
    host = DeviceBytes(
        weights_bytes=sum(left) + sizes.input_bytes,
        cache_bytes=sum(cells),
        graph_bytes=graph_bytes,
        projector_bytes=0 if devices else projector_bytes,
        layer_weights_bytes=left,
        layer_cache_bytes=cells,
        input_weights_bytes=sizes.input_bytes,
    )
    return MemoryReport(origin=MemoryOrigin.ESTIMATED, devices=tuple(devices), host=host)


def layer_ranges(layout: Layout, block_count: int) -> list[tuple[int, int]]:
    """Return half-open ranges of layers per device of the layout; the output is layer `block_count`."""
    stop = block_count + (not layout.output_on_host)
    start = max(0, stop - sum(part.layer_count for part in layout.devices))
    ranges = []
    for part in layout.devices:
        ranges.append((start, min(stop, start + part.layer_count)))
        start = ranges[-1][1]
    return ranges


def cache_bytes(facts: ModelFacts, layout: Layout) -> list[int]:
    """Return cells · (keys + values) and the recurrent states, per layer. Sliding windows count in full."""
    layers = len(facts.layer_weights_bytes)
    if not facts.layer_key_width and not facts.layer_state_bytes:
        return [int(weights * CACHE_SHARE_UNKNOWN) for weights in facts.layer_weights_bytes]
    cells = -(-layout.context_tokens * layout.slots // CELL_STEP) * CELL_STEP
    (key_bytes, key_elements), (value_bytes, value_elements) = (
        CACHE_TYPES.get(name, CACHE_TYPES["f16"]) for name in layout.cache_types
    )
    found = [0] * layers
    for block, (keys, values) in enumerate(zip(facts.layer_key_width, facts.layer_value_width, strict=False)):
        found[block] += cells * keys * key_bytes // key_elements + cells * values * value_bytes // value_elements
    for block, state in enumerate(facts.layer_state_bytes):
        found[block] += state * layout.state_copies
    return found


def sizes_by_facts(facts: ModelFacts, layout: Layout) -> LayerSizes:
    """Return the sizes by the header, before any measurement."""
    caches = tuple(cache_bytes(facts, layout))
    return LayerSizes(
        weights=facts.layer_weights_bytes,
        caches=caches,
        experts=facts.layer_expert_bytes,
        input_bytes=facts.input_weights_bytes,
        beside_bytes=beside_bytes(facts, layout, sum(caches)),
    )


def beside_bytes(facts: ModelFacts, layout: Layout, cached_bytes: int) -> int:
    """Return the host RAM of a runner for any layout: copies of prompts and states, rows of logits."""
    rows = layout.output_rows * facts.vocabulary_size * _ROW_VALUE_BYTES
    return min(COPIES_BYTES_MAX, COPIES_MAX * cached_bytes) + rows


def sizes_by_larger(sizes: LayerSizes, facts: ModelFacts, layout: Layout) -> LayerSizes:
    """Bound the sizes of a layout by a measurement with no fewer slots and no less context.

    A cache is no larger than it was there, nor than its formula, which counts sliding windows in full.
    """
    caches = sizes.caches
    if facts.layer_key_width or facts.layer_state_bytes:
        caches = tuple(map(min, caches, cache_bytes(facts, layout)))
    beside = min(sizes.beside_bytes, beside_bytes(facts, layout, sum(caches)))
    return replace(sizes, caches=caches, beside_bytes=beside)


def graph_bytes(facts: ModelFacts, layout: Layout) -> int:
    """Compute buffers of a device, for the worst case of attention without a fused kernel or of the output."""
    batch = layout.ubatch_tokens or layout.batch_tokens
    cells = layout.context_tokens * layout.slots
    blocks = 1 + 4 * facts.embedding_length + cells * (1 + facts.head_count)
    return 4 * batch * max(blocks, facts.embedding_length + facts.vocabulary_size)
