"""Layers onto devices: each rule of placement 4.4 as a table, and all of it against every possibility."""

import itertools
from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.sizes.splitting import Bin, Filling, Split, split_layers

ROOMS = st.lists(st.integers(0, 40), min_size=1, max_size=5)
SIZES = st.lists(st.integers(0, 12), min_size=2, max_size=13)


def bins(*rooms: int, classes: Sequence[int] = ()) -> list[Bin]:
    return [
        Bin(key=("n", f"d{index}"), room_bytes=room, speed_class=classes[index] if classes else 0)
        for index, room in enumerate(rooms)
    ]


def counts(split: Split) -> list[tuple[str, int]]:
    return [(device, count) for (_, device), count in split.parts]


def most_layers(sizes: Sequence[int], rooms: Sequence[int]) -> tuple[int, int]:
    """By looking at every order of devices: most blocks, then whether the output lies on a device too."""
    best = (0, 0)
    for has_output in (1, 0):
        layers = sizes if has_output else sizes[:-1]
        for order in itertools.permutations(rooms):
            start = len(layers)
            for room in order:
                used = 0
                while start and used + layers[start - 1] <= room:
                    start -= 1
                    used += layers[start]
            taken = len(layers) - start
            best = max(best, (taken - has_output, has_output) if taken else (0, 0))
    return best


def fewest_devices(sizes: Sequence[int], rooms: Sequence[int]) -> int | None:
    complete = (len(sizes) - 1, 1)
    for count in range(1, len(rooms) + 1):
        if any(most_layers(sizes, some) == complete for some in itertools.combinations(rooms, count)):
            return count
    return None


def test_everything_goes_to_one_device_if_it_fits_there() -> None:
    split = split_layers([5] * 10, bins(30, 60, 40))
    assert counts(split) == [("d1", 10)]
    assert split.is_complete


def test_the_fewest_devices_share_in_proportion_to_room_with_the_output_on_the_smallest() -> None:
    split = split_layers([10] * 9, bins(40, 80, 30))
    assert counts(split) == [("d1", 6), ("d0", 3)]
    assert split.is_complete


def test_spread_takes_every_device_at_once() -> None:
    split = split_layers([10] * 9, bins(90, 90, 90), Filling(spread=True))
    assert sorted(count for _, count in counts(split)) == [3, 3, 3]


def test_what_does_not_fit_stays_on_the_host_beginning_with_block_0() -> None:
    split = split_layers([10] * 10, bins(35, 25))
    assert split.taken == 5
    assert (split.host_blocks, split.output_on_host) == (4, True)  # 5 blocks rather than 4 and the output


def test_the_output_is_given_up_before_blocks() -> None:
    split = split_layers([10, 10, 10, 35], bins(40))
    assert counts(split) == [("d0", 3)]
    assert (split.host_blocks, split.output_on_host) == (0, True)


def test_the_output_is_kept_where_giving_it_up_wins_no_block() -> None:
    split = split_layers([10, 10, 10, 2], bins(25))
    assert counts(split) == [("d0", 3)]
    assert (split.host_blocks, split.output_on_host) == (1, False)


def test_a_faster_class_takes_first_and_what_is_left_goes_to_the_next() -> None:
    split = split_layers([10] * 6, bins(100, 40, classes=[1, 0]), Filling(devices_min=2))
    assert counts(split) == [("d0", 2), ("d1", 4)]


def test_a_given_count_of_layers_is_neither_more_nor_fewer() -> None:
    split = split_layers([10] * 9, bins(200), Filling(given_layers=4))
    assert counts(split) == [("d0", 4)]
    assert (split.host_blocks, split.output_on_host) == (5, False)


def test_a_given_count_exceeds_the_room_only_where_that_is_allowed() -> None:
    assert split_layers([10] * 9, bins(35), Filling(given_layers=6)).taken == 3
    assert split_layers([10] * 9, bins(35), Filling(given_layers=6, may_exceed=True)).taken == 6


def test_sets_that_were_too_small_before_are_not_tried_again() -> None:
    assert len(split_layers([10] * 4, bins(50, 50), Filling(devices_min=2)).parts) == 2


def test_of_equally_many_devices_the_better_set_is_taken() -> None:
    def likes_d2(split: Split) -> tuple[object, ...]:
        return (("n", "d2") not in dict(split.parts),)

    assert counts(split_layers([10] * 4, bins(90, 80, 70), Filling(score=likes_d2))) == [("d2", 4)]


def test_a_large_output_makes_the_devices_change_places() -> None:
    split = split_layers([10, 10, 10, 50], bins(60, 30))
    assert counts(split) == [("d1", 2), ("d0", 2)]
    assert split.is_complete


def test_without_any_room_nothing_lies_on_devices() -> None:
    split = split_layers([10, 10], bins(5, 0))
    assert split.parts == ()
    assert (split.host_blocks, split.output_on_host) == (1, True)


@given(sizes=SIZES, rooms=ROOMS, classes=st.lists(st.integers(0, 2), min_size=5, max_size=5))
def test_as_many_layers_on_as_few_devices_as_any_arrangement(
    sizes: list[int], rooms: list[int], classes: list[int]
) -> None:
    split = split_layers(sizes, bins(*rooms, classes=classes))
    on_device = dict(zip((key for key, _ in split.parts), _bytes_of(split, sizes), strict=True))
    for one in bins(*rooms):
        assert on_device.get(one.key, 0) <= one.room_bytes
    assert split.host_blocks + split.taken + split.output_on_host == len(sizes)
    blocks, output = most_layers(sizes, rooms)
    assert split.worth == (blocks, output) or split.taken == 0 == blocks + output
    fewest = fewest_devices(sizes, rooms)
    if fewest is not None and len([one for one in sizes if one]) >= fewest:
        assert len(split.parts) <= fewest


def _bytes_of(split: Split, sizes: Sequence[int]) -> list[int]:
    start, found = split.host_blocks, []
    for _, count in split.parts:
        found.append(sum(sizes[start : start + count]))
        start += count
    return found


@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=12),
    rooms=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 1)), min_size=1, max_size=5),
)
def test_what_is_said_to_hold_everything_is_what_everything_lies_on(
    sizes: list[int], rooms: list[tuple[int, int]]
) -> None:
    bins = [Bin(key=("n", f"d{index}"), room_bytes=room, speed_class=kind) for index, (room, kind) in enumerate(rooms)]
    plain = split_layers(sizes, bins)
    quick = split_layers(sizes, bins, Filling(only_complete=True))
    assert quick.is_complete == plain.is_complete
    if plain.is_complete:
        assert quick == plain


def test_of_more_sets_than_are_looked_at_the_fastest_devices_come_first() -> None:
    slow, fast = [12] * 9, [10] * 6  # nine roomy ones, and six that suffice
    among = bins(*slow, *fast, classes=[1] * 9 + [0] * 6)
    speeds = {one.key: 2 - one.speed_class for one in among}
    filling = Filling(score=lambda split: (sum(count / speeds[key] for key, count in split.parts),))
    split = split_layers([10] * 6, among, filling)
    assert split.is_complete
    assert {device for (_, device), _ in split.parts} == {f"d{index}" for index in range(9, 15)}


def test_where_devices_change_places_those_of_a_node_stay_together_and_the_heads_take_the_end() -> None:
    large, small, other = ("head", "large"), ("head", "small"), ("other", "d")
    among = [
        Bin(key=large, room_bytes=55, speed_class=0),
        Bin(key=small, room_bytes=25, speed_class=0),
        Bin(key=other, room_bytes=15, speed_class=1),
    ]
    split = split_layers([10, 10, 10, 50], among)
    assert split.parts == ((other, 1), (small, 2), (large, 1))
    assert split.is_complete


@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=12),
    rooms=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 2)), min_size=1, max_size=6),
)
def test_over_several_nodes_as_much_is_laid_as_any_order_of_nodes_and_of_their_devices_takes(
    sizes: list[int], rooms: list[tuple[int, int]]
) -> None:
    among = [
        Bin(key=(f"n{number}", f"d{index}"), room_bytes=room, speed_class=number)
        for index, (room, number) in enumerate(rooms)
    ]
    split = split_layers(sizes, among, Filling(output=True))
    nodes = [node for node, _ in itertools.groupby(node for (node, _), _ in split.parts)]
    assert len(nodes) == len(set(nodes))  # each node in one piece
    head = f"n{min(number for _, number in rooms)}"
    assert head not in nodes[:-1]  # and the first one has the end
    of_nodes = [[room for room, number in rooms if number == one] for one in sorted({number for _, number in rooms})]
    farthest = min(
        _left_by(sizes, itertools.chain(*ordered))
        for others in itertools.permutations(of_nodes[1:])
        for ordered in itertools.product(*(itertools.permutations(one) for one in (of_nodes[0], *others)))
    )
    assert split.is_complete == (farthest == 0)


def _left_by(sizes: Sequence[int], rooms: Iterable[int]) -> int:
    """Count the layers that are left if these rooms are filled one after the other, from the last layer on."""
    start = len(sizes)
    for room in rooms:
        used = 0
        while start and used + sizes[start - 1] <= room:
            start -= 1
            used += sizes[start]
    return start
