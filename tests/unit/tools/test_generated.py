"""Generated files are compared before they are written."""

import pytest

from tools.generated import ROOT, write_or_check


def test_a_check_names_the_stale_file_and_leaves_it(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "docs" / "glossary.md"
    before = path.read_text(encoding="utf-8")
    assert write_or_check({path: before + "more"}, ["--check"], tool="glossary") == 1
    assert "docs/glossary.md is not up to date: python -m tools.glossary" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == before
    assert write_or_check({path: before}, ["--check"], tool="glossary") == 0
