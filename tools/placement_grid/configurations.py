"""The grid: shapes of models, sizes and device sets, and how much of its need each device has left."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tools.model_zoo import ZOO, Recipe, shape

MIB = 1024 * 1024
SEED = 20_25
# A device has between so much and so much of what will be counted for it: the decision is never obvious.
ROOM_MIN, ROOM_MAX = 0.8, 1.6
# Larger ones would only take longer; the machine that runs the grid needs the RAM of every device at once.
DEVICE_BYTES_MAX = 4800 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSet:
    """Distribution of layers: one share for each device, in layer order; the rest is in host RAM."""

    name: str
    shares: tuple[float, ...]
    pipeline: bool = False
    output_on_host: bool = False

    def layer_counts(self, blocks: int) -> tuple[int, ...]:
        """Layers of each device, the output layer among them where it lies on one; at least one each."""
        layers = blocks + (0 if self.output_on_host else 1)
        counts = [max(1, round(share * layers)) for share in self.shares]
        whole = abs(sum(self.shares) - 1.0) < 1e-9
        if whole:
            counts[0] += layers - sum(counts)
        return tuple(counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One cell of the grid."""

    number: int
    model: str
    blocks: int
    context_tokens: int  # of one slot
    slots: int
    batch_tokens: int
    cache_type: str
    devices: DeviceSet
    room: tuple[float, ...]  # of each device: what it has left, as a multiple of what is counted for it
    draft: str = ""  # model that guesses its tokens; empty: none
    rollback_tokens: int = 0  # copies of a recurrent state, for each slot

    @property
    def name(self) -> str:
        """For the table."""
        sizes = f"{self.context_tokens}x{self.slots} {self.cache_type} b{self.batch_tokens}"
        model = f"{self.model}+{self.draft}" if self.draft else self.model
        return f"{model} {sizes} {self.devices.name}"


DEVICE_SETS = (
    DeviceSet(name="one", shares=(1.0,)),
    DeviceSet(name="two", shares=(0.5, 0.5)),
    DeviceSet(name="two-uneven", shares=(0.75, 0.25)),
    DeviceSet(name="two-pipeline", shares=(0.5, 0.5), pipeline=True),
    DeviceSet(name="three", shares=(0.4, 0.3, 0.3)),
    DeviceSet(name="half", shares=(0.5,)),
    DeviceSet(name="two-output-on-host", shares=(0.5, 0.5), output_on_host=True),
)
SIZES = (
    (2048, 1, 64),
    (4096, 4, 512),
    (8192, 8, 256),
    (16384, 2, 512),
    (32768, 1, 512),
    (65536, 4, 128),
)
STEPS = 4  # sizes and cache types that a shape meets on each device set
ROLLBACKS = (0, 1, 3, 15)  # tokens that a recurrent state goes back, in each of the steps
# Shapes with the vocabulary of the draft model, which they have in the last of their steps.
DRAFTED, DRAFT_MODEL = ("tied", "moe"), "dense"
CACHE_TYPES = ("f16", "q8_0", "q4_0")
# 1 to 2.5 GiB on each device, where a margin of some MiB is as little as on a real card: caches, which take no file.
LARGE_MODEL = "57m"
LARGE_SIZES = ((131072, 4, "f16"), (131072, 8, "q8_0"), (65536, 8, "f16"), (98304, 5, "f16"))
LARGE_BATCH_TOKENS = 64
LARGE_SETS = (("one", 1), ("two", 2), ("three", 2))  # and how many times the slots


def recipes() -> tuple[Recipe, ...]:
    """Return the shapes of the grid: each that llama.cpp lays out differently, and one with more weights than cache."""
    tiny = ("dense", "dense_wide_head", "tied", "moe", "swa", "recurrent", "hybrid")
    return (
        *(replace(ZOO[name], context_tokens=1 << 17) if ZOO[name].context_tokens else ZOO[name] for name in tiny),
        replace(shape("57m"), context_tokens=1 << 17),
        ZOO["hybrid_rollback"],
    )


def grid(*, count: int | None = None) -> list[Configuration]:
    """Every configuration in a fixed order, or `count` of them, spread evenly."""
    cells = list(_cells())
    if count is not None:
        cells = [cells[index * len(cells) // count] for index in range(count)]
    return cells


def _cells() -> Iterator[Configuration]:
    """Shapes × device sets × some of the sizes and cache types, so that each pair of values meets often."""
    draw = random.Random(SEED)
    number = 0
    for model_index, recipe in enumerate(recipes()):
        for set_index, devices in enumerate(DEVICE_SETS):
            for step in range(STEPS):
                context_tokens, slots, batch_tokens = SIZES[(model_index + 2 * set_index + step) % len(SIZES)]
                yield Configuration(
                    number=number,
                    model=recipe.name,
                    blocks=recipe.layers,
                    context_tokens=context_tokens,
                    slots=slots,
                    batch_tokens=batch_tokens,
                    cache_type=CACHE_TYPES[(set_index + step) % len(CACHE_TYPES)],
                    devices=devices,
                    room=_rooms(draw, devices),
                    draft=DRAFT_MODEL if recipe.name in DRAFTED and step == STEPS - 1 else "",
                    rollback_tokens=ROLLBACKS[step] if recipe.name == "hybrid_rollback" else 0,
                )
                number += 1
    yield from _large(draw, number)


def _large(draw: random.Random, number: int) -> Iterator[Configuration]:
    by_name = {devices.name: devices for devices in DEVICE_SETS}
    blocks = shape(LARGE_MODEL).layers
    for name, times in LARGE_SETS:
        for context_tokens, slots, cache_type in LARGE_SIZES:
            yield Configuration(
                number=number,
                model=LARGE_MODEL,
                blocks=blocks,
                context_tokens=context_tokens,
                slots=slots * times,
                batch_tokens=LARGE_BATCH_TOKENS,
                cache_type=cache_type,
                devices=by_name[name],
                room=_rooms(draw, by_name[name]),
            )
            number += 1


def _rooms(draw: random.Random, devices: DeviceSet) -> tuple[float, ...]:
    return tuple(math.exp(draw.uniform(math.log(ROOM_MIN), math.log(ROOM_MAX))) for _ in devices.shares)
