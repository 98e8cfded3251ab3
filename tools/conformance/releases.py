"""Releases of the official clients that are tested, each in an environment with nothing else."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A set of clients that are installed together."""

    name: str
    packages: tuple[tuple[str, str], ...]

    @property
    def pins(self) -> list[str]:
        """As pip reads them."""
        return [f"{package}=={version}" for package, version in self.packages]


NEWEST = Release(name="newest", packages=(("openai", "3.54.0"), ("anthropic", "2.12.0"), ("ollama", "0.6.3")))
YEAR_OLD = Release(name="a year older", packages=(("openai", "2.8.0"), ("anthropic", "0.74.1"), ("ollama", "0.6.1")))
RELEASES = (NEWEST, YEAR_OLD)


def environment_of(release: Release, folder: Path) -> Path:
    """Return a Python with these clients and nothing else; it is made once.

    Raises:
        subprocess.CalledProcessError: they cannot be installed, without a network for instance.
    """
    place = folder / release.name.replace(" ", "-")
    python, mark = place / "bin" / "python", place / ".pins"
    if not (mark.exists() and mark.read_text() == "\n".join(release.pins)):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *release.pins], check=True)
        mark.write_text("\n".join(release.pins))
    return python
