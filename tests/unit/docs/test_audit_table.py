"""docs/operators.md lists every audited act."""

from tools.audit_table import DOCUMENT, administrative_routes, page, table


def test_the_page_is_up_to_date() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == page(text), "run: python -m tools.audit_table"


def test_acts_of_every_kind_have_a_row() -> None:
    rows = table().splitlines()
    assert len(rows) > len(administrative_routes()) > 15
    for name in (
        "`DELETE /api/delete`",
        "`PUT /puna/v1/aliases/{alias}`",
        "`/puna.v1.Inference/LoadModel`",
        "`node.admit`",
    ):
        assert any(row.startswith(f"| {name} |") for row in rows), name
