"""Version of Puna: its release, and the commit that it was built from where that is known.

A wheel or an image gets its commit when it is built (`hatch_build.py`); a checkout has it in `.git`, where it is
read without running git. Nothing else is known of a tree that was downloaded as an archive.
"""

import functools
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

COMMIT_FILE = "commit.txt"
# Of a commit's 40 digits; as many as tell commits of one project apart.
COMMIT_DIGITS = 12
_BUILT = re.compile(rf"[0-9a-f]{{7,{COMMIT_DIGITS}}}(\.dirty)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PACKAGE = Path(__file__).resolve().parent


@functools.cache
def puna_version() -> str:
    """As packages are named: "0.1.0+1db18dfa2c3e"; "0" when run from a source tree that is not installed."""
    try:
        release = version("puna")
    except PackageNotFoundError:
        release = "0"
    commit = _built_commit(_PACKAGE / COMMIT_FILE) or checkout_commit(_PACKAGE.parent)
    return f"{release}+{commit}" if commit else release


def _built_commit(file: Path) -> str | None:
    text = _text(file)
    return text if text is not None and _BUILT.fullmatch(text) else None


def checkout_commit(root: Path) -> str | None:
    """Return the commit of a checkout, without regard to changed files. None: it is no checkout."""
    directory = root / ".git"
    if (pointer := _text(directory)) is not None:  # a second work tree
        directory = root / pointer.removeprefix("gitdir:").strip()
    head = _text(directory / "HEAD")
    if head is None:
        return None
    if head.startswith("ref:"):
        head = _ref(directory, head.removeprefix("ref:").strip())
    return head[:COMMIT_DIGITS] if head is not None and _COMMIT.fullmatch(head) else None


def _ref(directory: Path, name: str) -> str | None:
    common = directory / (_text(directory / "commondir") or ".")
    for place in (directory, common):
        if (commit := _text(place / name)) is not None:
            return commit
    packed = _text(common / "packed-refs") or ""
    return next((line.split()[0] for line in packed.splitlines() if line.endswith(f" {name}")), None)


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
