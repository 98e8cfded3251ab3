"""Models of this machine, and those that the server lists. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cli.core.doctor.findings import Finding, fail, ok


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedModels:
    """A model directory that was looked at. `troubles`: by name, what is wrong with a model, or nothing.

    `renamed`: by name, the file that has another one. `answers` is False where the directory does not.
    """

    troubles: Mapping[str, str]
    renamed: Mapping[str, str] = field(default_factory=dict)
    answers: bool = True

    @property
    def broken(self) -> Mapping[str, str]:
        """Return those with a trouble."""
        return {name: trouble for name, trouble in self.troubles.items() if trouble}


def assess_models(checked: CheckedModels, *, directory: str) -> Iterator[Finding]:
    """Yield one finding for the directory and one for each model that cannot be used, or has another name."""
    if not checked.answers:
        yield fail("models", f"{directory} does not answer", "look whether its disk or its network mount is there")
        return
    good = len(checked.troubles) - len(checked.broken)
    if good or not checked.broken:
        yield ok("models", f"{good} usable in {directory}" if good else f"none yet in {directory}")
    for name, file in sorted(checked.renamed.items()):
        if name not in checked.broken:
            yield ok("models", f"{file} is served as {name.removesuffix(':latest')}")
    for name, trouble in sorted(checked.broken.items()):
        yield _unusable(name, trouble)


def assess_listed(models: Iterable[Mapping[str, Any]], *, named: frozenset[str]) -> Iterator[Finding]:
    """Yield a finding for each model that the server lists as unusable; those `named` are left out."""
    for model in models:
        if model.get("error") and model.get("name") not in named:
            yield _unusable(str(model.get("name")), str(model["error"]))


def _unusable(name: str, trouble: str) -> Finding:
    return fail("models", f"{name}: {trouble}", f"repair, rename or copy it again, or remove it: `puna rm {name}`")
