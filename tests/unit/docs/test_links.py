"""Every link of the documents leads somewhere."""

from pathlib import Path

from tools.docs_markdown import ROOT, Link, anchor, broken, links, pages


def test_every_link_and_anchor_leads_somewhere() -> None:
    found = [link for page in pages() for link in links(page)]
    assert len(found) > 50
    assert [f"{link.page.relative_to(ROOT)}:{link.line}: {why}" for link in found if (why := broken(link))] == []


def test_every_page_of_docs_is_linked_from_another_one() -> None:
    targets = {
        (link.page.parent / link.target.partition("#")[0]).resolve()
        for page in pages()
        for link in links(page)
        if not link.target.startswith("#") and (link.page.parent / link.target.partition("#")[0]).resolve() != page
    }
    lonely = [page.name for page in (ROOT / "docs").glob("*.md") if page not in targets]
    assert lonely == []


def test_a_link_to_a_missing_page_or_heading_is_noticed(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    assert "no docs/nowhere.md" in broken(Link(page=page, line=1, target="docs/nowhere.md"))
    assert "#nothing" in broken(Link(page=page, line=1, target="docs/users.md#nothing"))
    assert broken(Link(page=page, line=1, target="https://example.org/x#y")) == ""


def test_anchors_are_named_as_github_names_them() -> None:
    assert anchor("`queue_full`") == "queue_full"
    assert anchor("The gateway alone: `make bench-gateway`") == "the-gateway-alone-make-bench-gateway"
