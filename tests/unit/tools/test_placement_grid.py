"""Verdicts of the grid on a prediction."""

import math
from dataclasses import replace

import pytest

from scheduler.core.sizes.margins import FULL_SIZE_BYTES, LOADS_MIN, MARGIN_BYTES_MIN
from scheduler.core.values.policy import Policy
from tools.placement_grid.configurations import DEVICE_SETS, DeviceSet, grid
from tools.placement_grid.planner import COMPUTED_BYTES, band_table, bands, false_refusal_share, kept_bytes
from tools.placement_grid.predictions import MIB, ModelFacts, file_and_cache, fits, scaled_file, shared_out
from tools.placement_grid.report import complaints, score, scores, table
from tools.placement_grid.run import Cell

GOOD = Cell(
    configuration=grid()[0],
    measured=(100 * MIB,),
    by_file=(80 * MIB,),
    by_file_and_cache=(500 * MIB,),
    free=(110 * MIB,),
    loaded=True,
    real=(99 * MIB,),
)


def test_a_right_prediction_has_nothing_against_it() -> None:
    assert complaints([GOOD]) == []
    assert "measured" in table(scores([GOOD]))


def test_a_load_that_fails_after_a_promise_is_the_worst() -> None:
    broken = replace(GOOD, loaded=False)
    found = score("x", [broken], lambda cell: cell.measured)
    assert (found.said_fits, found.failed_after_fits, found.false_refusals) == (1, 1, 0)
    assert any("failed after a promise" in text for text in complaints([broken]))


def test_a_refusal_is_false_if_the_load_went_well_anyway() -> None:
    found = score("x", [GOOD], lambda cell: cell.by_file_and_cache)
    assert (found.false_refusals, found.false_refusal_share) == (1, 1.0)
    margin = score("x", [GOOD], lambda cell: cell.measured, lambda _: [11 * MIB])
    assert margin.false_refusals == 1


def test_an_error_counts_against_the_bar_only_above_both_limits() -> None:
    within = replace(GOOD, real=(131 * MIB,))
    beyond = replace(GOOD, real=(133 * MIB,))
    assert score("x", [within], lambda cell: cell.measured).beyond_bar == 0
    assert score("x", [beyond], lambda cell: cell.measured).beyond_bar == 1


def test_what_cannot_be_loaded_with_enough_memory_is_a_complaint() -> None:
    assert complaints([replace(GOOD, real=(), loaded=False, failure="aborted")])


def test_the_formulas_are_those_that_they_say() -> None:
    facts = ModelFacts(file_bytes=1000, embedding_length=8, kv_heads=2)
    assert scaled_file(facts) == 1200
    assert file_and_cache(facts, context_tokens=100) == (1000 + 2 * 8 * 2 * 100) * 1.04
    assert shared_out(900.0, (5, 4), 9) == (500, 400)


def test_every_device_must_have_room() -> None:
    assert fits((5, 5), (5, 5))
    assert not fits((5, 6), (50, 5))


def test_layers_are_shared_out_completely_unless_some_stay_in_host_ram() -> None:
    for devices in DEVICE_SETS:
        counts = devices.layer_counts(8)
        assert all(count >= 1 for count in counts)
        whole = 8 if devices.output_on_host else 9
        assert sum(counts) == (whole if sum(devices.shares) == 1.0 else 4)
    assert DeviceSet(name="x", shares=(0.5, 0.5), output_on_host=True).layer_counts(8) == (4, 4)


def test_what_a_margin_refuses_falls_with_the_size_of_the_device() -> None:
    right = replace(GOOD, real=GOOD.measured)
    # Rooms are even on a scale of factors, from 0.8 to 1.6: 16 of 100 MiB are refused though they would do.
    assert false_refusal_share(right) == pytest.approx(math.log(1.16) / math.log(2))
    assert false_refusal_share(right, smallest_bytes=4096 * MIB) == pytest.approx(math.log(1 + 16 / 4096) / math.log(2))
    two = replace(right, measured=(100 * MIB,) * 2, real=(100 * MIB,) * 2)
    assert false_refusal_share(two) > false_refusal_share(right)


def test_what_was_loaded_and_what_is_computed_are_told_apart() -> None:
    found = bands([GOOD, replace(GOOD, measured=(10 * MIB,), real=(10 * MIB,), free=(40 * MIB,))])
    assert [(one.least_bytes, one.cells, one.refused) for one in found[:2]] == [(0, 1, 0), (64 * MIB, 1, 1)]
    assert [(one.least_bytes, one.cells) for one in found[2:]] == [(size, 0) for size in COMPUTED_BYTES]
    assert band_table(found).count("computed") == len(COMPUTED_BYTES)


def test_margins_are_learned_as_the_scheduler_learns_them() -> None:
    cells = [
        replace(GOOD, configuration=replace(GOOD.configuration, number=number), real=(100 * MIB + 1,))
        for number in range(LOADS_MIN + 1)
    ]
    kept = kept_bytes(cells)
    share = GOOD.free[0] / FULL_SIZE_BYTES  # a small device keeps the same part of its memory
    assert kept[0] == kept[LOADS_MIN - 1] == (int(Policy().margin_bytes * share),)
    assert kept[LOADS_MIN] == (int(MARGIN_BYTES_MIN * share),)
