"""The picture of the README, drawn in two palettes: `python -m tools.docs_picture` writes both files."""

import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from tools.generated import ROOT, write_or_check

FOLDER = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 880, 400
_FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """Colours for one background."""

    ground: str
    line: str
    text: str
    quiet: str
    box: str
    accent: str
    accent_text: str


PALETTES = {
    "light": Palette(
        ground="#ffffff",
        line="#8b949e",
        text="#1f2328",
        quiet="#59636e",
        box="#f6f8fa",
        accent="#0b6e4f",
        accent_text="#ffffff",
    ),
    "dark": Palette(
        ground="#0d1117",
        line="#6e7681",
        text="#e6edf3",
        quiet="#9198a1",
        box="#161b22",
        accent="#3fb98c",
        accent_text="#0d1117",
    ),
}


def picture(palette: Palette) -> str:
    """Return the whole file: clients above, the gateway, the deciding services on the left, two nodes on the right."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"',
        f'role="img" aria-labelledby="title" font-family="{_FONT}" font-size="14">',
        '<title id="title">Clients speak to one gateway; the scheduler decides which model runs on which node;',
        "tokens come straight from the node's runner.</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{palette.ground}"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"',
        f'orient="auto-start-reverse"><path d="M0 0 8 4 0 8Z" fill="{palette.line}"/></marker></defs>',
    ]
    for left, name in zip((150, 300, 450, 600), ("Ollama", "OpenAI", "Anthropic", "gRPC"), strict=True):
        parts += [_box(palette, left, 16, 130, 40, name), _line(palette, [(left + 65, 56), (left + 65, 92)])]
    parts += [
        _box(palette, 150, 92, 580, 52, "gateway", "one address, one API for each client", strong=True),
        _box(palette, 24, 210, 250, 56, "scheduler", "which model runs where"),
        _box(palette, 24, 318, 110, 52, "Redis", "what is wanted"),
        _box(palette, 150, 318, 124, 52, "discovery", "who is there"),
        _line(palette, [(210, 144), (210, 210)], "where?", (218, 182)),
        _line(palette, [(79, 266), (79, 318)]),
        _line(palette, [(212, 318), (212, 266)]),
        _line(palette, [(460, 144), (460, 204)], "request, tokens", (470, 178), both=True),
        _line(palette, [(680, 144), (680, 204)], both=True),
        _line(palette, [(274, 238), (338, 238)], "start", (289, 230)),
    ]
    for left, name, devices in ((344, "node a", ("GPU 0", "GPU 1")), (612, "node b", ("GPU 0", "RAM"))):
        parts += _node(palette, left, name, devices)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _node(palette: Palette, left: int, name: str, devices: tuple[str, str]) -> list[str]:
    parts = [
        f'<rect x="{left}" y="204" width="244" height="172" rx="8" fill="none" stroke="{palette.line}"',
        'stroke-dasharray="5 4"/>',
        _text(palette, left + 14, 226, name, quiet=True),
        _text(palette, left + 230, 226, "host", quiet=True, end=True),
        _box(palette, left + 14, 238, 216, 46, "runner", "llama.cpp, one loaded model", strong=True),
    ]
    for index, (device, share) in enumerate(zip(devices, (0.7, 0.45), strict=True)):
        top = 300 + 34 * index
        bar = left + 74
        parts += [
            _text(palette, left + 14, top + 15, device),
            f'<rect x="{bar}" y="{top}" width="156" height="20" rx="4" fill="{palette.box}" stroke="{palette.line}"/>',
            f'<rect x="{bar}" y="{top}" width="{156 * share:.0f}" height="20" rx="4" fill="{palette.accent}"/>',
        ]
    return parts


def _box(
    palette: Palette, x: int, y: int, width: int, height: int, name: str, says: str = "", *, strong: bool = False
) -> str:
    fill, ink = (palette.accent, palette.accent_text) if strong else (palette.box, palette.text)
    stroke = palette.accent if strong else palette.line
    middle, base = x + width // 2, y + height // 2 + (-2 if says else 5)
    lines = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{stroke}"/>',
        f'<text x="{middle}" y="{base}" text-anchor="middle" font-weight="600" fill="{ink}">{escape(name)}</text>',
    ]
    if says:
        lines.append(
            f'<text x="{middle}" y="{base + 17}" text-anchor="middle" font-size="12" fill="{ink}">{escape(says)}</text>'
        )
    return "\n".join(lines)


def _text(palette: Palette, x: int, y: int, text: str, *, quiet: bool = False, end: bool = False) -> str:
    ink = palette.quiet if quiet else palette.text
    anchor = ' text-anchor="end"' if end else ""
    return f'<text x="{x}" y="{y}" font-size="12"{anchor} fill="{ink}">{escape(text)}</text>'


def _line(
    palette: Palette,
    points: list[tuple[int, int]],
    label: str = "",
    label_at: tuple[int, int] = (0, 0),
    *,
    both: bool = False,
) -> str:
    path = " ".join(f"{x},{y}" for x, y in points)
    tips = 'marker-end="url(#tip)"' + (' marker-start="url(#tip)"' if both else "")
    line = f'<polyline points="{path}" fill="none" stroke="{palette.line}" stroke-width="1.5" {tips}/>'
    return line + (_text(palette, *label_at, label, quiet=True) if label else "")


def files() -> dict[Path, str]:
    """Return the content of each file."""
    return {FOLDER / f"overview-{name}.svg": picture(palette) for name, palette in PALETTES.items()}


def main(arguments: list[str]) -> int:
    """Write the pictures, or check them. 1: not up to date."""
    return write_or_check(files(), arguments, tool="docs_picture")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
