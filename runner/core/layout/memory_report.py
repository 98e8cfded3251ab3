"""Puts what the engine counts per buffer together as bytes per device and class. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBytes:
    """Bytes by class. `cache_bytes` is KV cells and recurrent state, `graph_bytes` the worst-case compute buffers.

    Attributes:
        layer_weights_bytes: part of `weights_bytes` for each layer, block 0 first, output layer last; empty: unknown.
        layer_cache_bytes: likewise of `cache_bytes`.
        input_weights_bytes: part of `weights_bytes`: token embeddings. With the layers' it makes up the whole.
        projector_bytes: vision projector and draft model, each with its graph and cache; beside the other classes.
    """

    weights_bytes: int = 0
    cache_bytes: int = 0
    graph_bytes: int = 0
    layer_weights_bytes: tuple[int, ...] = ()
    layer_cache_bytes: tuple[int, ...] = ()
    input_weights_bytes: int = 0
    projector_bytes: int = 0

    def plus(self, other: "ClassBytes") -> "ClassBytes":
        """Class by class."""
        names = (one.name for one in fields(self))
        return ClassBytes(**{name: _add(getattr(self, name), getattr(other, name)) for name in names})

    @property
    def total_bytes(self) -> int:
        """All classes."""
        return self.weights_bytes + self.cache_bytes + self.graph_bytes + self.projector_bytes


def _add(first: Any, second: Any) -> Any:
    if isinstance(first, tuple):
        return tuple(one + other for one, other in zip_longest(first, second, fillvalue=0))
    return first + second


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferUse:
    """One line of the engine's breakdown. `device_id` is None for what lies in host RAM."""

    buffer_type: str
    device_id: str | None
    bytes: ClassBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes per device, in the order of the layout, and in host RAM."""

    devices: tuple[tuple[str, ClassBytes], ...]
    host: ClassBytes


def sum_by_device(buffers: Iterable[BufferUse], *, device_ids: Sequence[str]) -> MemoryUse:
    """Sum over buffer types. Devices of the layout come first and always, others that hold something after them."""
    by_device = {device_id: ClassBytes() for device_id in device_ids}
    host = ClassBytes()
    for buffer in buffers:
        if buffer.device_id is None:
            host = host.plus(buffer.bytes)
        else:
            by_device[buffer.device_id] = by_device.get(buffer.device_id, ClassBytes()).plus(buffer.bytes)
    return MemoryUse(devices=tuple(by_device.items()), host=host)


def add_draft(use: MemoryUse, draft: MemoryUse) -> MemoryUse:
    """Add what a draft model takes to its target's report, where it lies beside the target's own classes."""
    taken = {device_id: ClassBytes(projector_bytes=count.total_bytes) for device_id, count in draft.devices}
    devices = tuple((device_id, count.plus(taken.get(device_id, ClassBytes()))) for device_id, count in use.devices)
    return MemoryUse(devices=devices, host=use.host.plus(ClassBytes(projector_bytes=draft.host.total_bytes)))


def extrapolate(small: MemoryUse, large: MemoryUse, *, small_cells: int, large_cells: int, cells: int) -> MemoryUse:
    """Bytes at `cells` on the line through two measurements; caches and graphs grow linearly with the context."""

    def at(first: int, second: int) -> int:
        return max(0, second + (second - first) * (cells - large_cells) // (large_cells - small_cells))

    def line(first: ClassBytes, second: ClassBytes) -> ClassBytes:
        return ClassBytes(
            weights_bytes=at(first.weights_bytes, second.weights_bytes),
            cache_bytes=at(first.cache_bytes, second.cache_bytes),
            graph_bytes=at(first.graph_bytes, second.graph_bytes),
            projector_bytes=second.projector_bytes,
        )

    smaller = dict(small.devices)
    devices = tuple((device, line(smaller.get(device, ClassBytes()), use)) for device, use in large.devices)
    return MemoryUse(devices=devices, host=line(small.host, large.host))
