"""Facts about a Markdown page for tests and generators: blocks, headings, and targets of its links. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+|~~~+)(?P<language>[\w+-]*)\s*$")
_COMMENT = re.compile(r"^\s*<!--\s*(?P<text>.*?)\s*-->\s*$")
_HEADING = re.compile(r"^#{1,6}\s+(?P<text>.*?)\s*#*$")
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?(?P<target>[^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_ATTRIBUTE = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=\"(?P<target>[^\"]+)\"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block. `line` is that of its fence, from 1; `marker` is the comment right above it, or empty."""

    page: Path
    line: int
    language: str
    text: str
    marker: str

    @property
    def name(self) -> str:
        """Return the place, for people and for ids of tests."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One link of a page, as it is written."""

    page: Path
    line: int
    target: str


def pages() -> list[Path]:
    """Every page that people read, in a fixed order."""
    patterns = ("*.md", "docs/**/*.md", "deploy/**/*.md", "bench/**/*.md")
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern)})


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in its order.

    Raises:
        ValueError: the last one has no end.
    """
    lines = page.read_text(encoding="utf-8").splitlines()
    found: list[Block] = []
    start: int | None = None
    opening = re.match("", "")
    for index, line in enumerate(lines):
        fence = _FENCE.match(line)
        if start is None:
            if fence:
                start, opening = index, fence
        elif fence and not fence["language"] and opening and fence["ticks"] == opening["ticks"]:
            indent = len(opening["indent"])
            text = "".join(f"{inner[indent:]}\n" for inner in lines[start + 1 : index])
            found.append(
                Block(page=page, line=start + 1, language=opening["language"], text=text, marker=_above(lines, start))
            )
            start = None
    if start is not None:
        raise ValueError(f"{page.name}:{start + 1}: the block has no end")
    return found


def anchors(page: Path) -> set[str]:
    """Return the targets of `#…` in a page: its headings as GitHub names them, and explicit ids."""
    found: dict[str, int] = {}
    result: set[str] = set()
    for _, line in _prose(page):
        result.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line))
        heading = _HEADING.match(line)
        if heading:
            slug = anchor(heading["text"])
            count = found.get(slug, 0)
            found[slug] = count + 1
            result.add(f"{slug}-{count}" if count else slug)
    return result


def anchor(heading: str) -> str:
    """Return a heading's name in links."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def links(page: Path) -> Iterator[Link]:
    """Every link and picture of a page outside of blocks and code."""
    for number, line in _prose(page):
        text = _CODE.sub(lambda code: "`" * len(code[0]), line)
        for pattern in (_LINK, _ATTRIBUTE):
            for match in pattern.finditer(text):
                yield Link(page=page, line=number, target=match["target"])


def broken(link: Link) -> str:
    """Return the reason why a link of a page is broken; empty if it works, or leads to another host."""
    if re.match(r"[a-z][a-z0-9+.-]*:", link.target):
        return ""
    path, _, fragment = link.target.partition("#")
    target = (link.page.parent / path).resolve() if path else link.page
    if not target.exists():
        return f"there is no {path}"
    if fragment and target.suffix == ".md" and fragment not in anchors(target):
        return f"{target.relative_to(ROOT)} has no heading #{fragment}"
    return ""


def _above(lines: list[str], start: int) -> str:
    comment = _COMMENT.match(lines[start - 1]) if start else None
    return comment["text"] if comment else ""


def _prose(page: Path) -> Iterator[tuple[int, str]]:
    inside = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and not inside:
            inside = fence["ticks"]
        elif inside:
            if fence and fence["ticks"] == inside and not fence["language"]:
                inside = ""
        else:
            yield number, line
