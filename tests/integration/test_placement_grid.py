"""A small part of the placement grid: what is counted is what devices with real limits give out."""

from pathlib import Path

import orjson
import pytest

from tools.placement_grid.__main__ import RESULTS
from tools.placement_grid.configurations import DEVICE_SETS, grid
from tools.placement_grid.report import complaints, scores
from tools.placement_grid.run import run_grid

CONFIGURATIONS = 8


@pytest.mark.timeout(600)
def test_what_was_counted_is_what_is_allocated_and_every_decision_is_right(tmp_path: Path) -> None:
    chosen = grid(count=CONFIGURATIONS)
    cells = run_grid(chosen, tmp_path)
    assert complaints(cells) == []
    assert len(cells) == CONFIGURATIONS
    measured = scores(cells)[0]
    assert measured.said_fits > 0
    assert any(not cell.loaded for cell in cells), "no device was ever too small"
    assert any(cell.loaded and cell.configuration.draft for cell in cells), "no draft model was beside its target"


def test_the_grid_is_large_enough_and_meets_every_device_set() -> None:
    cells = grid()
    assert len(cells) >= 200
    assert {cell.devices for cell in cells} == set(DEVICE_SETS)
    assert {cell.devices for cell in cells if cell.draft} == set(DEVICE_SETS)
    assert len(
        {(cell.model, cell.devices.name, cell.context_tokens, cell.slots, cell.cache_type) for cell in cells}
    ) == len(cells)


def test_the_last_whole_grid_that_was_recorded_meets_every_bar() -> None:
    """It takes minutes, so here it is read: `make placement-grid` writes it."""
    newest = max(RESULTS.glob("*-placement-grid.json"))
    summary = orjson.loads(newest.read_bytes())["summary"]
    assert summary["configurations"] == len(grid())
    assert summary["holds"], summary["complaints"]
    assert {name: bar["outcome"] for name, bar in summary["bars"].items()} == {
        "configurations": "met",
        "errors_above_2_percent_and_32_mib": "met",
        "failed_after_fits": "met",
        "false_refusal_share": "met",
        "planner_failed_after_fits": "met",
        "planner_false_refusal_share": "met",
    }
