"""The environment of this shell, as processes that it starts would read it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from cli.core.doctor.assessments import assess_ollama, assess_unknown
from cli.core.doctor.findings import Finding, fail, ok
from cli.settings import CliSettings
from common.effective_settings import EffectiveSetting, Source, effective_settings
from common.ollama_environment import EQUIVALENTS
from common.ollama_environment import PREFIX as OLLAMA
from common.settings import KNOWN_NAMES, PREFIX, PunaSettings
from common.startup_error import StartupError
from discovery.settings import DiscoverySettings
from gateway.settings import GatewaySettings
from runner.host.settings import HostSettings
from runner.serve.settings import RunnerSettings
from scheduler.settings import SchedulerSettings

# In the order in which people look for them; what several read is shown as the first of them reads it.
PROCESSES: tuple[tuple[str, type[PunaSettings]], ...] = (
    ("command line", CliSettings),
    ("gateway", GatewaySettings),
    ("scheduler", SchedulerSettings),
    ("discovery", DiscoverySettings),
    ("host", HostSettings),
    ("runner", RunnerSettings),
)


def unknown_names() -> list[str]:
    """PUNA_ names that nothing reads."""
    return sorted(name for name in os.environ if name.startswith(PREFIX) and name not in KNOWN_NAMES)


@contextmanager
def without(names: list[str]) -> Iterator[None]:
    """Remove these variables from the environment, so that the other settings can be read."""
    taken = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(taken)


def inspect_environment(unknown: list[str], settings: list[EffectiveSetting]) -> Iterator[Finding]:
    """Names, values, and what counts of Ollama's. Read it inside of `without(unknown)`."""
    yield from assess_unknown(unknown, KNOWN_NAMES)
    seen: set[str] = set()
    for process, kind in PROCESSES:
        try:
            with without(_of_clients(kind)):
                kind.load()
        except StartupError as error:
            if str(error) not in seen:
                yield fail(
                    "environment", f"{process}: {error}", "correct or unset it; docs/settings.md has all of them"
                )
            seen.add(str(error))
    changed = [one for one in settings if one.source is Source.ENVIRONMENT]
    for one in changed:
        yield ok("environment", f"{one.name}={one.value}")
    if not changed:
        yield ok("environment", "no PUNA_ name is set; every setting has its default")
    counting = {
        OLLAMA + EQUIVALENTS[name.removeprefix(PREFIX)][0]: name for _, kind in PROCESSES for name in kind.taken_over()
    }
    yield from assess_ollama(
        set_names=[name for name in os.environ if name.startswith(OLLAMA)],
        counting=counting,
        known=frozenset(OLLAMA + name for name, _ in EQUIVALENTS.values()),
    )


def _of_clients(kind: type[PunaSettings]) -> list[str]:
    """Return PUNA_HOST for the gateway if it is a URL: only commands use that; the gateway listens on host:port."""
    name = f"{PREFIX}HOST"
    return [name] if kind is GatewaySettings and "://" in os.environ.get(name, "") else []


def all_settings() -> list[EffectiveSetting]:
    """By name, once each; those of processes that cannot read their values are left out."""
    found: dict[str, EffectiveSetting] = {}
    for _, kind in PROCESSES:
        try:
            with without(_of_clients(kind)):
                settings = kind.load()
        except StartupError:
            continue
        for one in effective_settings(settings):
            found.setdefault(one.name, one)
    return sorted(found.values(), key=lambda one: one.name)
