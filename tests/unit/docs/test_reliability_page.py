"""docs/reliability.md has the figures of the newest report."""

import json

from tools.faults_table import DOCUMENT, document, newest_report


def test_the_page_is_written_from_the_newest_report() -> None:
    path = newest_report()
    assert path is not None
    page = document(json.loads(path.read_text(encoding="utf-8")), path.name)
    assert DOCUMENT.read_text(encoding="utf-8") == page, "python -m tools.faults_table"
