"""Splits what the engine counts per device over the layers: table and formulas, scaled to the counts. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.core.layout.layer_places import EVERY_BLOCK, INPUT_LAYER, OUTPUT_LAYER, LayerPlaces, layer_of
from runner.core.layout.memory_report import ClassBytes, MemoryUse

# A formula that is further off than this has missed something.
TOLERATED_SHARE = 0.02
# Rounding and alignment of a device's few buffers; no formula is blamed for less.
TOLERATED_BYTES = 256 * 1024
_TOKEN_TABLE, _OUTPUT_TABLE = "token_embd.weight", "output.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """Facts from a model's files.

    Attributes:
        tensors: bytes of each tensor of the model file.
        adapter_tensors: bytes of each adapter tensor, by the name of the tensor that it changes; adapters added up.
        block_cache_bytes: what each block's cache takes by formula.
        host_extra_bytes: what host RAM holds beside the engine's caches: output rows, copies of prompts and states.
        mapped: host weights are the mapped file, whose range has holes: the table counts, not the engine.
    """

    places: LayerPlaces
    tensors: Mapping[str, int]
    block_cache_bytes: Sequence[int]
    adapter_tensors: Mapping[str, int]
    host_extra_bytes: int = 0
    mapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The engine's count of one device and class is not what the files say. `device_id` is empty for host RAM."""

    device_id: str
    what: str
    counted_bytes: int
    expected_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLayer:
    """Measured bytes of a block at its place: a device's index, None for host RAM. None: not known."""

    place: int | None
    block: int
    weights_bytes: int | None
    cache_bytes: int | None


def split_layers(
    use: MemoryUse, facts: LayerFacts, *, known: KnownLayer | None = None
) -> tuple[MemoryUse, tuple[Mismatch, ...]]:
    """Add figures per layer, adapters and host extras included, to a report, and return where the formulas were off.

    A `known` layer has what was measured; formulas share out the rest.
    """
    weights = _weights_by_place(facts)
    mismatches: list[Mismatch] = []
    # An encoder has heads and no cache.
    has_cache = any(count.cache_bytes for count in (use.host, *(count for _, count in use.devices)))

    def split(index: int | None, device_id: str, count: ClassBytes) -> ClassBytes:
        by_layer = weights.get(index, {})
        blocks = [block for block, place in enumerate(facts.places.devices[:-1]) if place == index]
        cache = {block: facts.block_cache_bytes[block] for block in blocks} if has_cache else {}
        counted = count.weights_bytes
        if index is None:
            by_layer = _with_second_table(by_layer, facts, counted)
            if facts.mapped and by_layer:
                counted = sum(by_layer.values())
        for what, wanted, got in (("weights", by_layer, counted), ("cache", cache, count.cache_bytes)):
            expected = sum(wanted.values())
            if abs(got - expected) > max(TOLERATED_SHARE * got, TOLERATED_BYTES):
                mismatches.append(Mismatch(device_id=device_id, what=what, counted_bytes=got, expected_bytes=expected))
        here = known if known is not None and known.place == index else None
        return _layered(
            count,
            facts,
            index,
            weights=_share_out(by_layer, counted, blocks, here, here.weights_bytes if here else None),
            cache=_share_out(cache, count.cache_bytes, blocks, here, here.cache_bytes if here else None),
        )

    devices = tuple((device_id, split(index, device_id, count)) for index, (device_id, count) in enumerate(use.devices))
    return MemoryUse(devices=devices, host=split(None, "", use.host)), tuple(mismatches)


def _layered(
    count: ClassBytes, facts: LayerFacts, index: int | None, *, weights: dict[int, int], cache: dict[int, int]
) -> ClassBytes:
    layers = len(facts.places.devices)
    input_bytes = weights.pop(INPUT_LAYER, 0)
    for name, size in facts.adapter_tensors.items():
        if facts.places.place_of(name) == index:
            layer = layer_of(name)
            if layer == INPUT_LAYER:
                input_bytes += size
            else:
                at = layers - 1 if layer == OUTPUT_LAYER else layer
                weights[at] = weights.get(at, 0) + size
    if index is None and facts.host_extra_bytes:
        cache[layers - 1] = cache.get(layers - 1, 0) + facts.host_extra_bytes
    return replace(
        count,
        weights_bytes=sum(weights.values()) + input_bytes,
        cache_bytes=sum(cache.values()),
        layer_weights_bytes=tuple(weights.get(layer, 0) for layer in range(layers)),
        layer_cache_bytes=tuple(cache.get(layer, 0) for layer in range(layers)),
        input_weights_bytes=input_bytes,
    )


def _weights_by_place(facts: LayerFacts) -> dict[int | None, dict[int, int]]:
    """Bytes by place, then by layer (INPUT_LAYER for what comes before the blocks)."""
    places, output = facts.places, facts.places.block_count
    found: dict[int | None, dict[int, int]] = {}

    def add(place: int | None, layer: int, size: int) -> None:
        by_layer = found.setdefault(place, {})
        by_layer[layer] = by_layer.get(layer, 0) + size

    for name, size in facts.tensors.items():
        layer = layer_of(name)
        if layer == EVERY_BLOCK:
            for place in set(places.devices[:-1]):
                add(place, places.devices.index(place), size)
        elif layer == OUTPUT_LAYER:
            add(places.devices[-1], output, size)
        elif layer < output:  # further blocks exist in files with draft layers, which are not loaded
            add(places.place_of(name), layer, size)
    if _is_tied(facts.tensors) and places.devices[-1] is not None:
        add(places.devices[-1], output, facts.tensors[_TOKEN_TABLE])
    return found


def _with_second_table(by_layer: dict[int, int], facts: LayerFacts, counted_bytes: int) -> dict[int, int]:
    """Add a second table if the count shows that the CPU rearranged a tied output; else it shares the token table."""
    if not _is_tied(facts.tensors) or facts.places.devices[-1] is not None or facts.mapped:
        return by_layer
    table, expected = facts.tensors[_TOKEN_TABLE], sum(by_layer.values())
    if abs(counted_bytes - expected - table) >= abs(counted_bytes - expected):
        return by_layer
    output = facts.places.block_count
    return {**by_layer, output: by_layer.get(output, 0) + table}


def _is_tied(tensors: Mapping[str, int]) -> bool:
    return _TOKEN_TABLE in tensors and _OUTPUT_TABLE not in tensors


def _share_out(
    sizes: Mapping[int, int], total_bytes: int, blocks: Sequence[int], known: KnownLayer | None, known_bytes: int | None
) -> dict[int, int]:
    if known is None or known_bytes is None or known_bytes > total_bytes:
        return _scale(sizes, total_bytes, unknown=blocks)
    others = {layer: size for layer, size in sizes.items() if layer != known.block}
    unknown = [block for block in blocks if block != known.block]
    return {**_scale(others, total_bytes - known_bytes, unknown=unknown), known.block: known_bytes}


def _scale(sizes: Mapping[int, int], total_bytes: int, *, unknown: Sequence[int]) -> dict[int, int]:
    """Scale shares to a total; the largest takes what rounding leaves. Without shares: `unknown` evenly."""
    shares = sizes if sum(sizes.values()) else dict.fromkeys(unknown, 1)
    known = sum(shares.values())
    if not known:
        return {}
    scaled = {layer: size * total_bytes // known for layer, size in shares.items()}
    largest = max(scaled, key=lambda layer: scaled[layer])
    scaled[largest] += total_bytes - sum(scaled.values())
    return scaled


def add_sizes(sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sizes by name, equal names added up."""
    found: dict[str, int] = {}
    for name, size in sizes:
        found[name] = found.get(name, 0) + size
    return found
