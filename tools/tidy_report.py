"""Count what the house style still misses, and hold each count below its ceiling.

    python -m tools.tidy_report                   a row per measure: count, ceiling, target
    python -m tools.tidy_report --places words    the places behind one count
    python -m tools.tidy_report --lower           write the counts of today as ceilings, where they are lower

`tools/tidy_ceilings.toml` has the ceilings; a unit test fails if a count exceeds its own.
"""

import argparse
import ast
import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = ROOT / "tools" / "tidy_ceilings.toml"
PRODUCT = ("cli", "common", "discovery", "gateway", "runner", "scheduler")
SMALL_MODULE_LINES = 40
MARKDOWN_LINE_MAX = 120

_OPENING = re.compile(r"(what|how|whether|who|whose|where|which|when|why)\b", re.IGNORECASE)
_PEOPLE = re.compile(r"\b(nobody|somebody|anybody|everybody|whoever|told|tells)\b", re.IGNORECASE)
# Old names with their successors: docs/glossary.md. `markup=` is an argument of the library rich.
_OLD_NAME = re.compile(
    r"\b(books|memos?|grounds|wishes|comers|starving|in_the_way|as_before|lazily|eyes|hopes|trials|markup(?!=))\b"
)
_PROSE = (".md", ".js", ".css", ".html", ".proto", ".yml", ".yaml", ".example")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A count of places that should go. `target`: the count at which the work on it is done."""

    title: str
    target: int
    places: Callable[["Tree"], Iterator[str]]


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Tracked files of a checkout. Paths are relative to the root and use slashes."""

    root: Path
    names: tuple[str, ...]
    _texts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_checkout(cls, root: Path = ROOT) -> "Tree":
        """Read the list of files that git tracks or would track.

        Raises:
            OSError, subprocess.CalledProcessError: the root is no git checkout.
        """
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, capture_output=True, check=True, text=True).stdout
        return cls(root=root, names=tuple(sorted(n for n in listed.split("\0") if n and (root / n).is_file())))

    def text(self, name: str) -> str:
        """Return the content of a file; bytes that are no UTF-8 are replaced."""
        if name not in self._texts:
            self._texts[name] = (self.root / name).read_text(encoding="utf-8", errors="replace")
        return self._texts[name]

    @cached_property
    def python(self) -> tuple[str, ...]:
        """Every Python file."""
        return tuple(name for name in self.names if name.endswith(".py"))

    @cached_property
    def product(self) -> tuple[str, ...]:
        """Python files of the services, the command line and what they share."""
        return tuple(name for name in self.python if name.split("/")[0] in PRODUCT)

    @cached_property
    def modules(self) -> Mapping[str, ast.Module]:
        """Syntax trees of all Python files, by path."""
        return {name: ast.parse(self.text(name), name) for name in self.python}

    @cached_property
    def imports(self) -> Mapping[str, frozenset[str]]:
        """Dotted names that each product file imports: modules, and names in modules."""
        return {name: frozenset(_imported(self.modules[name])) for name in self.product}


def _imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def docstring_openings(tree: Tree) -> Iterator[str]:
    """Find docstrings that open with a question word."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for name, module in tree.modules.items():
        for node in ast.walk(module):
            text = ast.get_docstring(node) if isinstance(node, documented) else None
            if text and _OPENING.match(text):
                yield f"{name}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0][:80]}"


def _matches(tree: Tree, pattern: re.Pattern[str], names: Iterator[str]) -> Iterator[str]:
    for name in names:
        for number, line in enumerate(tree.text(name).splitlines(), start=1):
            for match in pattern.finditer(line):
                yield f"{name}:{number}: {match.group()}"


def people_words(tree: Tree) -> Iterator[str]:
    """Find words for people in product code, protos, deployment files, the page and the documents."""
    prose = (n for n in tree.names if n.endswith(_PROSE) and n.split("/")[0] not in ("tests", "bench"))
    yield from _matches(tree, _PEOPLE, (name for group in (tree.product, prose) for name in group))


def old_names(tree: Tree) -> Iterator[str]:
    """Find old names of the glossary in product code."""
    yield from _matches(tree, _OLD_NAME, iter(tree.product))


def doubled_classes(tree: Tree) -> Iterator[str]:
    """Find public class names that several product modules declare."""
    where: dict[str, list[str]] = defaultdict(list)
    for name in tree.product:
        for node in tree.modules[name].body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(name)
    yield from (f"{cls}: {', '.join(names)}" for cls, names in sorted(where.items()) if len(names) > 1)


def files_naming(word: str) -> Callable[[Tree], Iterator[str]]:
    """Return a search for product files that contain a word."""
    return lambda tree: (name for name in tree.product if word in tree.text(name))


def small_modules(tree: Tree) -> Iterator[str]:
    """Find short product modules that a single other module imports."""
    for name in tree.product:
        dotted = name.removesuffix(".py").replace("/", ".")
        lines = len(tree.text(name).splitlines())
        if lines < SMALL_MODULE_LINES and not dotted.endswith(("__init__", "__main__")):
            importers = [other for other, imported in tree.imports.items() if other != name and dotted in imported]
            if len(importers) == 1:
                yield f"{name}: {lines} lines, only {importers[0]}"


def upward_imports(tree: Tree) -> Iterator[str]:
    """Find imports in runner/host that close a circle between its packages."""
    base = "runner/host/"
    edges: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in tree.product:
        inner = name.removeprefix(base)
        if name == inner or "/" not in inner:
            continue
        for imported in tree.imports[name]:
            parts = imported.split(".")
            if (
                parts[:2] == ["runner", "host"]
                and len(parts) > 3
                and imported.replace(".", "/") + ".py" in tree.product
            ):
                edges[inner.split("/")[0], parts[2]].append(f"{name}: {imported}")
    for (source, target), places in sorted(edges.items()):
        # Of the two directions between a pair, the rarer one runs against the order.
        back = edges.get((target, source), [])
        if source != target and back and (len(places), source) < (len(back), target):
            yield from places


def product_lines(tree: Tree) -> Iterator[str]:
    """List every Python line of the product."""
    for name in tree.product:
        yield from (f"{name}:{number}" for number in range(1, len(tree.text(name).splitlines()) + 1))


def long_markdown_lines(tree: Tree) -> Iterator[str]:
    """Find lines of prose in documents that are too long. Tables and code blocks cannot be broken."""
    for name in tree.names:
        if not name.endswith(".md"):
            continue
        is_code = False
        for number, line in enumerate(tree.text(name).splitlines(), start=1):
            if line.lstrip().startswith("```"):
                is_code = not is_code
            elif not is_code and len(line) > MARKDOWN_LINE_MAX and not line.lstrip().startswith("|"):
                yield f"{name}:{number}"


MEASURES: Mapping[str, Measure] = {
    "openings": Measure(title="docstrings that open with a question word", target=0, places=docstring_openings),
    "words": Measure(title="words for people, in code and documents", target=0, places=people_words),
    "names": Measure(title="old names of the glossary, in product code", target=0, places=old_names),
    "classes": Measure(title="public class names with two meanings", target=0, places=doubled_classes),
    "sampler": Measure(title="product files that name xtc_threshold", target=4, places=files_naming("xtc_threshold")),
    "layout": Measure(title="product files that name cache_type_k", target=8, places=files_naming("cache_type_k")),
    "modules": Measure(title="modules under 40 lines with one importer", target=20, places=small_modules),
    "upward": Measure(title="imports in runner/host that run back up", target=0, places=upward_imports),
    "markdown": Measure(title="lines of Markdown over 120 characters", target=0, places=long_markdown_lines),
    "lines": Measure(title="product lines of Python", target=76_000, places=product_lines),
}


def counts(tree: Tree) -> dict[str, int]:
    """Count the places of every measure."""
    return {key: sum(1 for _ in measure.places(tree)) for key, measure in MEASURES.items()}


def read_ceilings() -> dict[str, int]:
    """Read the ceiling of each measure."""
    return {str(key): int(value) for key, value in tomllib.loads(CEILINGS.read_text(encoding="utf-8")).items()}


def main() -> None:
    """Print the report, or the places of one measure."""
    parser = argparse.ArgumentParser(prog="tools.tidy_report", description=__doc__)
    parser.add_argument("--places", choices=MEASURES, help="list the places behind one count")
    parser.add_argument("--lower", action="store_true", help="write lower counts as ceilings")
    given = parser.parse_args()
    tree = Tree.of_checkout()
    if given.places:
        print("\n".join(MEASURES[given.places].places(tree)))
        return
    found, ceilings = counts(tree), read_ceilings()
    for key, measure in MEASURES.items():
        print(f"{key:9} {found[key]:7,} of {ceilings[key]:7,}, target {measure.target:6,}  {measure.title}")
    if given.lower:
        lower = {key: min(count, ceilings[key]) for key, count in found.items()}
        CEILINGS.write_text("".join(f"{key} = {count}\n" for key, count in lower.items()), encoding="utf-8")


if __name__ == "__main__":
    main()
