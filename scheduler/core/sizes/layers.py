"""Bytes of each layer in any place: from a report, else from the model's header."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.memory import DeviceBytes, MemoryReport


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """Block 0 first, the output layer last. Weights hold the experts too."""

    weights: tuple[int, ...]
    caches: tuple[int, ...]
    experts: tuple[int, ...]
    input_bytes: int = 0
    projector_bytes: int = 0
    beside_bytes: int = 0  # in host RAM wherever the layers lie: output rows, copies of prompts and states

    def without_caches(self) -> "LayerSizes":
        """Return the sizes with the weights alone."""
        return replace(self, caches=(0,) * len(self.caches))

    def on_devices(self, *, experts_on_host: int = 0) -> list[int]:
        """Return the device bytes of each layer, if the experts of the first so many blocks are in host RAM."""
        sizes = [weights + cache for weights, cache in zip(self.weights, self.caches, strict=True)]
        for layer in range(min(experts_on_host, len(self.experts))):
            sizes[layer] -= self.experts[layer]
        return sizes


def sizes_by_report(report: MemoryReport, facts: ModelFacts) -> LayerSizes:
    """Return measured sizes. A report without layers is shared out by the header, so that its totals hold."""
    parts = (*report.devices, report.host)
    layers = len(facts.layer_weights_bytes)
    input_bytes = sum(part.input_weights_bytes for part in parts)
    projector_bytes = sum(part.projector_bytes for part in parts)
    beside_bytes = _beside(report, layers)
    weights, caches = _per_layer(parts, layers)
    if weights is None or caches is None:
        return _shared_out(parts, facts)
    caches[-1] -= beside_bytes
    # A host-only report has no copy of a tied embedding for the output; on a device it takes its bytes.
    if weights[-1] == 0:
        weights[-1] = facts.layer_weights_bytes[-1]
    experts = tuple(min(expert, weight) for expert, weight in zip(facts.layer_expert_bytes, weights, strict=False))
    return LayerSizes(
        weights=tuple(weights),
        caches=tuple(caches),
        experts=experts,
        input_bytes=input_bytes,
        projector_bytes=projector_bytes,
        beside_bytes=beside_bytes,
    )


def _beside(report: MemoryReport, layers: int) -> int:
    """Return the runner's own host RAM: the report has it with the host's output layer, which has no cells."""
    counts = report.host.layer_cache_bytes
    return counts[-1] if len(counts) == layers else 0


def _per_layer(parts: tuple[DeviceBytes, ...], layers: int) -> tuple[list[int] | None, list[int] | None]:
    weights = ((part.layer_weights_bytes, part.weights_bytes - part.input_weights_bytes) for part in parts)
    caches = ((part.layer_cache_bytes, part.cache_bytes) for part in parts)
    return _summed(weights, layers), _summed(caches, layers)


def _summed(counted: Iterable[tuple[tuple[int, ...], int]], layers: int) -> list[int] | None:
    """Sum each layer over all parts; None: one of them has bytes without layers."""
    by_layer = []
    for counts, total in counted:
        if len(counts) not in (0, layers) or (not counts and total > 0):
            return None
        if counts:
            by_layer.append(counts)
    return [sum(column) for column in zip(*by_layer, strict=True)] if by_layer else [0] * layers


def _shared_out(parts: tuple[DeviceBytes, ...], facts: ModelFacts) -> LayerSizes:
    weights = sum(part.weights_bytes for part in parts)
    caches = sum(part.cache_bytes for part in parts)
    known = sum(facts.layer_weights_bytes) + facts.input_weights_bytes
    blocks = len(facts.layer_weights_bytes) - 1
    scale = weights / known if known else 0.0
    shares = tuple(int(layer * scale) for layer in facts.layer_weights_bytes)
    if not known:
        shares = (weights // (blocks + 1),) * (blocks + 1)
    sizes = LayerSizes(
        weights=shares,
        caches=(*((caches // blocks,) * blocks), 0) if blocks else (caches,),
        experts=tuple(int(layer * scale) for layer in facts.layer_expert_bytes),
        input_bytes=int(facts.input_weights_bytes * scale),
    )
    return replace(sizes, projector_bytes=sum(part.projector_bytes for part in parts))
