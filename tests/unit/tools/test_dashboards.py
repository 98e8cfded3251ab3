"""Grafana's boards: written by their tool, and nothing in them belongs to one Grafana."""

import json
import re

import pytest
import yaml

from tools.dashboards.boards import BOARDS
from tools.dashboards.grafana import DIRECTORY, Board, to_json

PROVISIONING = DIRECTORY.parent / "provisioning"


def test_there_is_a_file_for_every_board_and_no_other() -> None:
    assert sorted(path.stem for path in DIRECTORY.glob("*")) == sorted(board.uid for board in BOARDS)
    assert [board.uid for board in BOARDS] == ["puna-fleet", "puna-model", "puna-node"]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_the_file_is_what_the_tool_writes(board: Board) -> None:
    assert (DIRECTORY / f"{board.uid}.json").read_text(encoding="utf-8") == to_json(board), (
        "run: python -m tools.dashboards"
    )


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_boards_can_be_provisioned_anywhere(board: Board) -> None:
    shown = json.loads(to_json(board))
    assert shown["id"] is None
    assert shown["schemaVersion"] >= 41
    panels = shown["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    pictures = [panel for panel in panels if panel["type"] != "row"]
    assert [panel["title"] for panel in pictures if not panel["fieldConfig"]["defaults"]["unit"]] == []
    sources = {target["datasource"]["uid"] for panel in pictures for target in panel["targets"]}
    assert sources == {"${datasource}"}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_variables_that_queries_use_are_declared(board: Board) -> None:
    shown = json.loads(to_json(board))
    names = {variable["name"] for variable in shown["templating"]["list"]}
    used = set(re.findall(r"\$(\w+)", json.dumps([panel.get("targets") for panel in shown["panels"]])))
    assert used - {"__rate_interval"} == names - {"datasource"}
    assert "datasource" in names


def test_provisioning_finds_the_boards_and_a_source() -> None:
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "puna.yml").read_text(encoding="utf-8"))["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "puna.yml").read_text(encoding="utf-8"))["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "${PROMETHEUS_URL}")
