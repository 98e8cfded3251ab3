import re
from pathlib import Path

import pytest

from cli.errors import MEANINGS, ExitCode, code_of_reason, code_of_status
from common.errors import ERROR_TABLE

DOCS = Path(__file__).resolve().parents[3] / "docs" / "commands.md"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, ExitCode.FAILED),
        (401, ExitCode.REFUSED),
        (403, ExitCode.REFUSED),
        (404, ExitCode.NOT_FOUND),
        (429, ExitCode.FAILED),
        (500, ExitCode.FAILED),
        (503, ExitCode.FAILED),
    ],
)
def test_a_status_of_the_server_becomes_one_of_the_command(status: int, code: ExitCode) -> None:
    assert code_of_status(status) is code


def test_errors_inside_streams_count_as_their_status_would() -> None:
    for reason, row in ERROR_TABLE.items():
        if row.openai_status in (401, 403, 404) and reason != "unknown_url":
            assert code_of_reason(reason) is code_of_status(row.openai_status), reason


def test_the_numbers_never_change() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "NOT_FOUND": 3,
        "REFUSED": 4,
        "UNREACHABLE": 5,
        "INTERRUPTED": 130,
    }


def test_the_page_of_commands_has_the_table() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.+?) \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE))

    assert rows == {str(code.value): text for code, text in MEANINGS.items()}
