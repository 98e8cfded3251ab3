"""Effect of the planner's margin on decisions, by the size of the devices. Pure.

The margins are the scheduler's own. What it also reserves for a GPU's context is left out: the limits of the grid's
devices count buffers alone.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.core.sizes.margins import MARGIN_BYTES_MIN, NO_MARGINS, MarginKey
from scheduler.core.values.policy import Policy
from tools.placement_grid.configurations import ROOM_MAX, ROOM_MIN
from tools.placement_grid.predictions import MIB, fits
from tools.placement_grid.run import Cell

GIB = 1024 * MIB
# The smallest part of a layout on its device distinguishes cells.
BAND_BYTES = (0, 64 * MIB, 256 * MIB, 1 * GIB)
ORDERS = 20
# Devices larger than the grid's: nothing is loaded on them, the errors of the grid are laid onto such sizes.
COMPUTED_BYTES = (4 * GIB, 20 * GIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """False refusals by the least margin, where parts of layouts are of about one size.

    Attributes:
        least_bytes: what the smallest part of each layout takes at least.
        cells: configurations with such parts; 0: computed from all of them for parts of exactly this size.
        refused: false refusals among them, with the room that each happened to have.
        expected_share: the same over every room that a device may have, from ROOM_MIN to ROOM_MAX of its need.
    """

    least_bytes: int
    cells: int
    refused: int
    expected_share: float


def kept_bytes(cells: Sequence[Cell]) -> dict[int, tuple[int, ...]]:
    """Return the margin of each device by configuration, as the scheduler learns it from each earlier load."""
    margins, found = NO_MARGINS, dict[int, tuple[int, ...]]()
    for cell in cells:
        key = MarginKey(
            build="grid",
            architecture=cell.configuration.model,
            device_kind="lent",
            is_split=len(cell.measured) > 1,
        )
        found[cell.configuration.number] = tuple(
            margins.of(key, "", unlearned_bytes=Policy().margin_bytes, need_bytes=need, total_bytes=free)
            for need, free in zip(cell.measured, cell.free, strict=True)
        )
        for need, real in zip(cell.measured, cell.real, strict=False):
            margins = margins.with_residual(key, real - need, need)
    return found


def in_other_orders(cells: Sequence[Cell]) -> list[float]:
    """Return the share of false refusals with the loads in other orders, where the scheduler learns other margins."""
    judged = [cell for cell in cells if cell.real]
    shares = []
    for seed in range(ORDERS):
        order = random.Random(seed).sample(judged, len(judged))
        kept = kept_bytes(order)
        refused = sum(
            cell.loaded and not fits(_with(cell.measured, kept[cell.configuration.number]), cell.free) for cell in order
        )
        shares.append(refused / max(1, len(judged)))
    return shares


def _with(needs: Sequence[int], margins: Sequence[int]) -> list[int]:
    return [need + margin for need, margin in zip(needs, margins, strict=True)]


def bands(cells: Sequence[Cell]) -> list[Band]:
    """By size, smallest first: what was loaded, then what is computed for larger devices."""
    judged = [cell for cell in cells if cell.real and min(cell.measured) > 0]
    found = []
    for least, most in zip(BAND_BYTES, (*BAND_BYTES[1:], math.inf), strict=True):
        mine = [cell for cell in judged if least <= min(cell.measured) < most]
        if mine:
            share = sum(false_refusal_share(cell) for cell in mine) / len(mine)
            refused = sum(_is_false_refusal(cell) for cell in mine)
            found.append(Band(least_bytes=least, cells=len(mine), refused=refused, expected_share=share))
    for size in COMPUTED_BYTES if judged else ():
        share = sum(false_refusal_share(cell, smallest_bytes=size) for cell in judged) / len(judged)
        found.append(Band(least_bytes=size, cells=0, refused=0, expected_share=share))
    return found


def false_refusal_share(cell: Cell, *, smallest_bytes: int | None = None) -> float:
    """Of all rooms that devices may have: how many would do and are refused. Errors stay as they are in bytes."""
    scale = 1.0 if smallest_bytes is None else smallest_bytes / min(cell.measured)
    would_do = would_be_taken = 1.0
    for need, real in zip(cell.measured, cell.real, strict=True):
        size = need * scale
        would_do *= _room_at_least(1 + (real - need) / size)
        would_be_taken *= _room_at_least(1 + MARGIN_BYTES_MIN / size)
    return max(0.0, would_do - would_be_taken)


def band_table(found: Sequence[Band]) -> str:
    """For people."""
    rows = [f"{'smallest part from':20} {'cells':>6} {'false refusals':>15} {'over all rooms':>15}"]
    for one in found:
        name = f"{one.least_bytes // MIB} MiB"
        drawn = f"{one.refused} ({one.refused / one.cells:.1%})" if one.cells else "computed"
        rows.append(f"{name:20} {one.cells or '':>6} {drawn:>15} {one.expected_share:>15.1%}")
    return "\n".join(rows)


def _is_false_refusal(cell: Cell) -> bool:
    return cell.loaded and not fits([need + MARGIN_BYTES_MIN for need in cell.measured], cell.free)


def _room_at_least(share: float) -> float:
    """Return the share of drawn rooms that are at least so much of the need."""
    if share <= ROOM_MIN:
        return 1.0
    return max(0.0, math.log(ROOM_MAX / share) / math.log(ROOM_MAX / ROOM_MIN))
