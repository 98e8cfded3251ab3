"""Every error and every finding of `puna doctor` has its place in docs/troubleshooting.md, and its anchor stays."""

import pytest

from common.errors import ERROR_TABLE
from tools.docs_errors import DOCUMENT, reasons, sections, with_sections
from tools.docs_findings import OPEN, findings
from tools.docs_markdown import anchors

TEXT = DOCUMENT.read_text(encoding="utf-8")


def test_the_page_is_up_to_date() -> None:
    assert with_sections(TEXT) == TEXT, "run: python -m tools.docs_errors, and write what a new error means"


@pytest.mark.parametrize("reason", reasons())
def test_an_error_has_a_section_that_says_what_to_do(reason: str) -> None:
    assert len(sections(TEXT)[reason].split()) >= 8
    assert reason in anchors(DOCUMENT)


def test_every_row_of_the_table_of_errors_is_there() -> None:
    assert set(reasons()) == set(ERROR_TABLE) == set(sections(TEXT))


def test_a_new_error_gets_a_section_without_text() -> None:
    before = TEXT.replace("### `disk_full`", "### `gone`")
    assert "### `gone`" not in with_sections(before)
    assert sections(with_sections(before))["disk_full"] == ""


def test_findings_of_the_doctor_are_read_from_its_code() -> None:
    found = findings()
    areas = {
        "environment",
        "engine",
        "devices",
        "ports",
        "disk",
        "models",
        "limits",
        "clocks",
        "redis",
        "server",
        "nodes",
    }
    assert areas <= {one.area for one in found}
    assert {one.level for one in found} == {"fail", "warn"}
    assert any(one.text == "no sentinel answers" for one in found)
    assert [one for one in found if one.area == OPEN] == []
