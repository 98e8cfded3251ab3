"""Layers onto exactly so many devices in any order with any cuts, against every order and every cut."""

import itertools
from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.sizes.arranging import SPARE_STEP_BYTES, Parts, Run, arranged, fastest

MIB = SPARE_STEP_BYTES
DEVICES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10), st.integers(1, 9)), min_size=1, max_size=4)
SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def run_of(sizes: Sequence[int], devices: Sequence[tuple[int, int, int]], count: int) -> Run:
    """In MiB; devices are their room, what the output adds there, and their speed."""
    return Run(
        sizes=[size * MIB for size in sizes],
        rooms=[room * MIB for room, _, _ in devices],
        end_rooms=[(room - more) * MIB for room, more, _ in devices],
        devices=count,
    )


def every(run: Run) -> Iterator[Parts]:
    """Every way in which so many devices hold the layers."""
    layers = len(run.sizes)
    for order in itertools.permutations(range(len(run.rooms)), run.devices):
        for cuts in itertools.combinations(range(1, layers), run.devices - 1):
            counts = [b - a for a, b in itertools.pairwise((0, *cuts, layers))]
            parts = tuple(zip(order, counts, strict=True))
            if spare(run, parts) >= 0:
                yield parts


def spare(run: Run, parts: Parts) -> int:
    """Return the free bytes of the device that has least left."""
    start, least = 0, sum(run.rooms)
    for index, count in parts:
        is_end = start + count == len(run.sizes)
        room = (run.end_rooms if is_end else run.rooms)[index]
        least = min(least, room - sum(run.sizes[start : start + count]))
        start += count
    return least


def seconds_of(run: Run, parts: Parts, seconds: Sequence[Sequence[float]]) -> float:
    start, found = 0, 0.0
    for index, count in parts:
        found += sum(seconds[index][start : start + count])
        start += count
    return found


@given(sizes=SIZES, devices=DEVICES, count=st.integers(1, 4))
def test_a_way_is_found_where_there_is_one_and_it_leaves_most_free(
    sizes: list[int], devices: list[tuple[int, int, int]], count: int
) -> None:
    run = run_of(sizes, devices, count)
    found = arranged(run)
    best = max((spare(run, parts) for parts in every(run)), default=None)
    if best is None:
        assert found is None
        return
    assert found is not None
    assert len(found) == count
    assert sum(layers for _, layers in found) == len(sizes)
    assert spare(run, found) > best - 2 * MIB
    assert spare(run, found) >= 0


@given(sizes=SIZES, devices=DEVICES, count=st.integers(1, 4))
def test_the_fastest_way_of_every_set_of_devices_is_found(
    sizes: list[int], devices: list[tuple[int, int, int]], count: int
) -> None:
    run = run_of(sizes, devices, count)
    seconds = [[size / speed for size in run.sizes] for _, _, speed in devices]
    least: dict[frozenset[int], float] = {}
    for parts in every(run):
        used, spent = frozenset(index for index, _ in parts), seconds_of(run, parts, seconds)
        least[used] = min(spent, least.get(used, spent))
    found = list(fastest(run, seconds))
    assert {frozenset(index for index, _ in parts) for parts in found} == least.keys()
    for parts in found:
        assert spare(run, parts) >= 0
        assert seconds_of(run, parts, seconds) <= least[frozenset(index for index, _ in parts)] * (1 + 1e-9)


@given(sizes=SIZES, devices=DEVICES, more=st.integers(0, 20))
def test_more_room_never_leaves_less_free(sizes: list[int], devices: list[tuple[int, int, int]], more: int) -> None:
    run = run_of(sizes, devices, len(devices))
    roomier = run_of(sizes, [(room + more, beside, speed) for room, beside, speed in devices], len(devices))
    before, after = arranged(run), arranged(roomier)
    if before is not None:
        assert after is not None
        assert spare(roomier, after) > spare(run, before) + more * MIB - 2 * MIB


def test_a_small_layer_at_the_end_goes_to_the_device_that_has_no_room_for_another() -> None:
    run = run_of([10, 10, 10, 2], [(33, 0, 1), (5, 0, 1)], 2)
    assert arranged(run) == ((0, 3), (1, 1))


def test_more_devices_than_are_looked_at_are_not_arranged() -> None:
    run = run_of([1] * 9, [(9, 0, 1)] * 9, 7)
    assert arranged(run) is None
    assert list(fastest(run, [[1.0] * 9] * 9)) == []
