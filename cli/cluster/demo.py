"""The demo model in the user's model directory."""

import hashlib
import shutil
from pathlib import Path

from cli.cluster.zygote import PACKAGES

MODEL = "demo"
# The repository has it beside the packages, a wheel inside this one.
_PLACES = (PACKAGES / "models" / "demo.gguf", PACKAGES / "cli" / "demo.gguf")


def install_demo(models: Path, *, record: Path) -> bool:
    """Copy the demo model where it is missing or outdated; `record` remembers what was installed. True if it is there.

    Copied, not linked: the file outlives an upgrade of Puna that moves its own, and a container may see only the home.
    """
    source = shipped_demo()
    target = models / f"{MODEL}.gguf"
    if source is not None:
        shipped = _digest(source)
        installed = record.read_text().strip() if record.exists() else None
        present = _digest(target) if target.exists() else None
        if should_install_demo(shipped=shipped, installed=installed, present=present):
            _copy(source, target)
        if installed != shipped:
            record.write_text(shipped + "\n")
    return target.exists()


def should_install_demo(*, shipped: str, installed: str | None, present: str | None) -> bool:
    """Decide by digests: of the shipped file, of the one installed earlier, of the file that lies there now.

    A file that the user deleted or replaced stays as the user left it; an untouched older demo is brought up to date.
    """
    if installed is None:
        return present is None
    return installed != shipped and present == installed


def shipped_demo() -> Path | None:
    """Return the file that came with this installation."""
    return next((place for place in _PLACES if place.exists()), None)


def _copy(source: Path, target: Path) -> None:
    """Copy in one step, so that a concurrent scan never reads a partial file."""
    temporary = target.with_suffix(".gguf.new")
    shutil.copyfile(source, temporary)
    temporary.replace(target)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
