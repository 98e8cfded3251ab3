"""Names in the environment. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from cli.core.doctor.findings import Finding, fail, ok, warn
from common.nearest import nearest


def assess_unknown(unknown: Iterable[str], known: frozenset[str]) -> Iterator[Finding]:
    """PUNA_ names that nothing reads: every process refuses to start with them."""
    for name in sorted(unknown):
        meant = nearest(name, known)
        advice = f"did you mean {meant}?" if meant else "unset it; docs/settings.md lists all names"
        yield fail("environment", f"unknown setting {name}", advice)


def assess_ollama(*, set_names: Iterable[str], counting: Mapping[str, str], known: frozenset[str]) -> Iterator[Finding]:
    """OLLAMA_ names. `counting`: the PUNA_ name that each one stands in for; `known`: those with an equivalent."""
    for name in sorted(set_names):
        if name in counting:
            yield ok("environment", f"{name} counts as {counting[name]}")
        elif name in known:
            yield ok("environment", f"{name} does not count: its PUNA_ name is set, or its value means nothing")
        else:
            yield warn("environment", f"{name} has no meaning here", "docs/settings.md says what there is instead")
