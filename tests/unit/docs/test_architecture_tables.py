"""The tables of the architecture are those of the code."""

from pathlib import Path

import pytest

from runner.core.devices.device_health import Condition
from scheduler.core.state.load_jobs import LoadState
from tools.architecture_tables import REFERENCE, STATES, TABLES, with_tables
from tools.docs_picture import files
from tools.proto_tables import files as proto_files
from tools.state_tables import state_tables


@pytest.mark.parametrize("page", TABLES, ids=[page.name for page in TABLES])
def test_the_page_has_the_tables_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert with_tables(page, text) == text, "run: python -m tools.architecture_tables"


def test_every_message_and_field_says_what_it_means() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.split("|")[1].strip().isdecimal()]
    assert len(rows) > 400
    silent = [row for row in rows if row.rstrip().endswith("|  |") and "_UNSPECIFIED" not in row]
    assert silent == []
    names = [message.name for file in proto_files() for message in file.proto.message_type]
    assert [name for name in names if f"### {name}\n" not in text] == []


def test_the_states_are_those_that_the_code_takes() -> None:
    table = state_tables()
    for state in (*LoadState, *Condition):
        assert f"`{state.value}`" in table
    assert "| errors of three models within ten minutes | worn | worn | worn | worn | · | · |" in table
    assert "| it is silent for too long | · | suspect | · |" in table
    assert "|  |" not in table  # every state has its meaning


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the markers"):
        with_tables(STATES, "no markers")


def test_the_pictures_are_drawn_by_their_script() -> None:
    stale = [path.name for path, content in files().items() if path.read_text(encoding="utf-8") != content]
    assert stale == [], "run: python -m tools.docs_picture"
