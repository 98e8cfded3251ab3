"""The counts of the house style, on a small tree with one fault of each kind, and on this one."""

from pathlib import Path

import pytest

from tools.tidy_report import MEASURES, Tree, counts, read_ceilings

SHORT = '"""Values."""\n\nVALUE = 1\n'
FILES = {
    "runner/host/low/base.py": SHORT,
    "runner/host/low/back.py": '"""Use."""\n\nfrom runner.host.high import top\n\nUSED = top\n' + "USED = top\n" * 40,
    "runner/host/high/top.py": '"""Use."""\n\nfrom runner.host.low import base, back\n\nUSED = base, back\n'
    + "A = 1\n" * 40,
    "common/one.py": 'class Twice:\n    """Whether it counts."""\n' + "A = 1\n" * 40,
    "common/two.py": 'class Twice:\n    """Count."""\n\n    xtc_threshold = cache_type_k = 1\n' + "A = 1\n" * 40,
    "common/three.py": '"""Keep books that nobody reads."""\n' + "A = 1\n" * 40,
    "docs/page.md": f"{'long ' * 30}\n\n| {'row ' * 40}|\n\n```sh\n{'code ' * 40}\n```\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return Tree(root=tmp_path, names=tuple(FILES))


@pytest.mark.parametrize(
    ("key", "places"),
    [
        ("openings", ["common/one.py:1: Whether it counts."]),
        ("words", ["common/three.py:1: nobody"]),
        ("names", ["common/three.py:1: books"]),
        ("classes", ["Twice: common/one.py, common/two.py"]),
        ("sampler", ["common/two.py"]),
        ("layout", ["common/two.py"]),
        ("modules", ["runner/host/low/base.py: 3 lines, only runner/host/high/top.py"]),
        ("upward", ["runner/host/low/back.py: runner.host.high.top"]),
        ("markdown", ["docs/page.md:1"]),
    ],
)
def test_each_fault_is_found_at_its_place(tree: Tree, key: str, places: list[str]) -> None:
    assert list(MEASURES[key].places(tree)) == places


def test_product_lines_are_counted_without_documents(tree: Tree) -> None:
    lines = sum(text.count("\n") for name, text in FILES.items() if name.endswith(".py"))
    assert counts(tree)["lines"] == lines


def test_no_count_of_this_tree_exceeds_its_ceiling() -> None:
    ceilings = read_ceilings()
    found = counts(Tree.of_checkout())
    assert {key: count for key, count in found.items() if count > ceilings[key]} == {}
