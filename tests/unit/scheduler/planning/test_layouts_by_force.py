"""Layouts that are found by measuring, against the best one that there is, on an engine that hides its graphs.

Measured is never what was planned: graphs depend on the number of devices, on where the output lies, on how many layers
are offloaded, and on the device. The planner may measure sixteen layouts of a shape, and that is the only slack: what
is not found in sixteen rounds is not found. `python -m tools.layout_sweep` looks at thousands of clusters; those that
were worse there are here, and how much worse they may be.
"""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.planning.candidates import Placement
from scheduler.core.values.constraints import Shape
from tests.unit.scheduler.hidden_engine import layouts_on
from tests.unit.scheduler.layouts_by_force import ORDER
from tests.unit.scheduler.small_clusters import BASE, Case, case

ROUNDS_MAX = 16
SLOWER_MAX = 1.1
BLOCKS_LOST_MAX = 2
SEEDS = st.integers(0, 2**32)
# Other clusters in each run; a failure names its seed, which belongs into one of the lists below.
EXAMPLES = 100
# Where a fixed order of devices, or the roomiest of them alone, once came to less than there is.
CASES_OF_THREE = (94, 241, 270, 276, 493, 575, 852)
CASES_OF_FIVE = (103, 158, 241, 306, 318, 409, 573, 698, 743, 802, 900, 921)
CASES_OF_SPEEDS = (10, 32, 42, 138, 154, 159, 218, 275, 339, 358, 374, 404, 459, 487, 499, 504, 532, 565, 631, 705, 912)
CASES_OUT_OF_ROUNDS = (3171, 3264)
# Where graphs differ from device to device, what the output adds is not told apart from the device.
CASES_SLOWER = (154, 218, 270, 1066, 1177)
SLOWEST_MAX = 1.26


@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_nothing_is_overcommitted_and_the_rounds_end(seed: int) -> None:
    one = case(seed, speeds=True, kinds=True)
    outcome, measured = one.decide()
    assert isinstance(outcome, Placement), "host RAM holds the model"
    assert one.fits(outcome.layout)
    assert outcome.report == one.engine.count(outcome.layout)
    assert outcome.rounds <= ROUNDS_MAX
    assert len(measured) <= 3 * ROUNDS_MAX  # one device, one node, layers in host RAM
    assert (outcome, measured) == one.decide()


@pytest.mark.parametrize("seed", range(0, 60, 2))
def test_by_force_is_the_best_of_all_layouts(seed: int) -> None:
    one = case(seed, devices_max=3, speeds=True, kinds=True)
    best = one.best()
    assert one.fits(best.layout)
    assert one.rank(best.layout) == best.rank
    assert one.token_s(best.layout) == pytest.approx(best.token_s)
    ranks = [(one.rank(BASE.without_devices()), one.token_s(BASE.without_devices()))]
    for count in range(1, len(one.gpu_ids) + 1):
        for chosen in itertools.combinations(one.gpu_ids, count):
            for layout in layouts_on(chosen, one.layers, BASE):
                rank = one.rank(layout)
                # The output alone on a device is no shape; what is worse in rank need not be counted.
                if rank[0] != ORDER.index(Shape.CPU) and rank <= best.rank and one.fits(layout):
                    ranks.append((rank, one.token_s(layout)))
    rank, token_s = min(ranks)
    assert rank == best.rank
    assert token_s == pytest.approx(best.token_s)


def check_best(one: Case) -> None:
    """The shape, the layers on devices and the number of devices of the best; less only if no round was left."""
    outcome, _ = one.decide()
    assert isinstance(outcome, Placement), "host RAM holds the model"
    got, best = one.rank(outcome.layout), one.best()
    assert got >= best.rank, "better than anything there is"
    assert outcome.rounds <= ROUNDS_MAX
    if outcome.rounds < ROUNDS_MAX:
        assert got == best.rank
    assert got[0] == best.rank[0]
    assert got[1] <= best.rank[1] + (BLOCKS_LOST_MAX if got[0] == ORDER.index(Shape.PARTIAL) else 0)
    if got == best.rank and outcome.rounds < ROUNDS_MAX:
        assert one.token_s(outcome.layout) <= best.token_s * SLOWER_MAX
    assert outcome.expected_s == pytest.approx(one.token_s(outcome.layout), rel=0.01) or not speeds_of(one)


def speeds_of(one: Case) -> bool:
    return all(device.speed_bytes_s for device in one.node.devices)


@pytest.mark.behaviour("B-72")
@given(seed=SEEDS, speeds=st.booleans())
@settings(max_examples=EXAMPLES, deadline=None, derandomize=False)
def test_shape_and_layers_are_those_of_the_best_layout_and_no_other_is_a_tenth_faster(seed: int, speeds: bool) -> None:
    check_best(case(seed, speeds=speeds))


@pytest.mark.behaviour("B-72")
@given(seed=SEEDS)
@settings(max_examples=EXAMPLES, deadline=None, derandomize=False)
def test_where_graphs_are_always_the_same_the_layout_is_the_best_there_is(seed: int) -> None:
    one = case(seed).with_largest_graphs()
    outcome, _ = one.decide()
    assert isinstance(outcome, Placement)
    assert one.rank(outcome.layout) == one.best().rank


@pytest.mark.behaviour("B-72")
@pytest.mark.parametrize("seed", CASES_OF_THREE)
def test_another_order_of_three_devices_is_found_where_it_holds_more(seed: int) -> None:
    check_exact(case(seed, devices_max=3))


@pytest.mark.behaviour("B-72")
@pytest.mark.parametrize("seed", CASES_OF_FIVE)
def test_another_order_of_five_devices_is_found_where_it_holds_more(seed: int) -> None:
    check_exact(case(seed))


@pytest.mark.behaviour("B-72")
@pytest.mark.parametrize("seed", CASES_OF_SPEEDS)
def test_another_order_is_found_where_it_is_faster(seed: int) -> None:
    one = case(seed, speeds=True)
    outcome = check_exact(one)
    assert one.token_s(outcome.layout) <= one.best().token_s * SLOWER_MAX


def check_exact(one: Case) -> Placement:
    outcome, _ = one.decide()
    assert isinstance(outcome, Placement)
    assert one.rank(outcome.layout) == one.best().rank
    assert outcome.rounds <= ROUNDS_MAX
    return outcome


@pytest.mark.behaviour("B-72")
@pytest.mark.parametrize("seed", CASES_OUT_OF_ROUNDS)
def test_what_sixteen_rounds_do_not_find_is_two_blocks_more_at_most(seed: int) -> None:
    one = case(seed)
    outcome, _ = one.decide()
    assert isinstance(outcome, Placement)
    assert outcome.rounds == ROUNDS_MAX
    check_best(one)


@pytest.mark.behaviour("B-72")
@pytest.mark.parametrize("seed", CASES_SLOWER)
def test_where_graphs_differ_by_device_a_layout_of_the_best_size_is_a_quarter_slower_at_most(seed: int) -> None:
    one = case(seed, speeds=True, kinds=True)
    outcome = check_exact(one)
    assert one.token_s(outcome.layout) <= one.best().token_s * SLOWEST_MAX


@pytest.mark.behaviour("B-72")
@pytest.mark.parametrize("seed", range(0, 80, 2))
def test_where_graphs_differ_by_device_shape_and_layers_are_those_of_the_best_all_the_same(seed: int) -> None:
    check_exact(case(seed, kinds=True))
