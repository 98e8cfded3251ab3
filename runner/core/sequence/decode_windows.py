"""Read speed of a runner's decode steps: steps that show it, and the result of several together. Pure.

A step that holds one token of one sequence reads every weight that a token needs once, and the cells of that sequence;
its time is that of reading, as long as there is much to read. Prompts compute, several sequences share what is read and
choose different experts: their steps tell nothing about it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from runner.core.layout.layer_places import OUTPUT_LAYER, LayerPlaces, is_expert, layer_of

STEPS_OF_A_WINDOW = 32
# Steps that are further apart are not of one window: the load beside the first of them is unknown.
WINDOW_S_MAX = 60.0
# Whatever others do makes steps slower, never faster: what a quarter of them reaches is what the device can do.
FAST_SHARE = 0.25
# How much of the cache a step reads is known roughly (windows, states), so it may be a small part only.
CACHE_SHARE_MAX = 0.25
_NS_PER_S = 1_000_000_000
_TOKEN_TABLE, _OUTPUT_TABLE = "token_embd.weight", "output.weight"


class LoneStep(NamedTuple):
    """A decode call that held one token of one sequence."""

    began_ns: int
    ended_ns: int
    cells: int  # that it could read


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReads:
    """Bytes read by a lone step. `weights` has bytes by index of the device in the layout, None for host RAM."""

    weights: tuple[tuple[int | None, int], ...]
    cell_bytes: float  # of one cell, on all devices together

    @property
    def weights_bytes(self) -> int:
        """On all devices."""
        return sum(size for _, size in self.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Some lone steps."""

    number: int
    steps: int
    span_s: float
    bytes_s: float


def weights_read(
    tensors: Mapping[str, int], places: LayerPlaces, *, experts: int, experts_used: int
) -> tuple[tuple[int | None, int], ...]:
    """Bytes that a token reads by place: of experts those that it uses, of the tables of inputs next to nothing."""
    found: dict[int | None, int] = {}
    for name, size in tensors.items():
        layer = layer_of(name)
        # Further blocks exist in files with draft layers, which are not loaded; what every block shares is tiny.
        if layer == OUTPUT_LAYER or 0 <= layer < places.block_count:
            used = size * experts_used // experts if is_expert(name) and 0 < experts_used <= experts else size
            place = places.place_of(name)
            found[place] = found.get(place, 0) + used
    if _TOKEN_TABLE in tensors and _OUTPUT_TABLE not in tensors:  # the output multiplies with the table of the inputs
        found[places.devices[-1]] = found.get(places.devices[-1], 0) + tensors[_TOKEN_TABLE]
    return tuple(found.items())


class DecodeWindows:
    """Steps in, windows out. `newest` is None until one is full."""

    def __init__(self) -> None:
        """No model yet: nothing is known of its steps."""
        self.newest: Window | None = None
        self.reads: StepReads | None = None
        self._number = 0
        self._first_ns = 0
        self._speeds: list[float] = []

    def take(self, steps: Iterable[LoneStep]) -> bool:
        """Count steps; True if a window is full now that was not before."""
        before = self._number
        if self.reads is not None:
            for step in steps:
                self._add(step, self.reads)
        return self._number != before

    def _add(self, step: LoneStep, reads: StepReads) -> None:
        weights, cache = reads.weights_bytes, reads.cell_bytes * step.cells
        seconds = (step.ended_ns - step.began_ns) / _NS_PER_S
        if seconds <= 0 or not weights or cache > weights * CACHE_SHARE_MAX:
            return
        if self._speeds and (step.ended_ns - self._first_ns) / _NS_PER_S > WINDOW_S_MAX:
            self._speeds.clear()
        if not self._speeds:
            self._first_ns = step.began_ns
        self._speeds.append((weights + cache) / seconds)
        if len(self._speeds) == STEPS_OF_A_WINDOW:
            fast = sorted(self._speeds, reverse=True)[round(STEPS_OF_A_WINDOW * FAST_SHARE) - 1]
            self._number += 1
            span_s = (step.ended_ns - self._first_ns) / _NS_PER_S
            self.newest = Window(number=self._number, steps=len(self._speeds), span_s=span_s, bytes_s=fast)
            self._speeds.clear()
