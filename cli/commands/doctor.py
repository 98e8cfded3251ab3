"""`puna doctor`: look at everything, and say what to do."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cli.cluster.home import ClusterRecord, is_locked, read_record, real_home
from cli.core.doctor.assessments import assess_models
from cli.core.doctor.findings import Finding, Level, fail, has_failed, ok, summary
from cli.doctor.environment import all_settings, inspect_environment, unknown_names, without
from cli.doctor.machine import (
    check_models,
    inspect_certificates,
    inspect_devices,
    inspect_disks,
    inspect_engine,
    inspect_limits,
    inspect_ports,
    inspect_state,
    inspect_unfinished,
)
from cli.doctor.server import inspect_redis, inspect_server
from cli.errors import CommandFailed, ExitCode
from cli.output import print_json, print_table
from cli.server import Server
from cli.settings import CliSettings
from common.effective_settings import EffectiveSetting
from common.startup_error import StartupError

_STYLES = {Level.OK: "green", Level.SKIP: "dim", Level.WARN: "yellow", Level.FAIL: "bold red"}
_LEVEL_WIDTH, _AREA_WIDTH = 4, 11


def doctor(*, with_settings: bool, as_json: bool) -> None:
    """Print every finding as it comes.

    Raises:
        CommandFailed: something failed.
    """
    unknown = unknown_names()
    console = Console(highlight=False, soft_wrap=True)
    findings: list[Finding] = []
    with without(unknown):
        settings = all_settings()
        for finding in examine(unknown, settings):
            findings.append(finding)
            if not as_json:
                print_finding(console, finding)
    if as_json:
        rows = [{name: value for name, value in asdict(one).items() if name != "text"} for one in settings]
        print_json({"ok": not has_failed(findings), "findings": list(map(asdict, findings)), "settings": rows})
    elif with_settings:
        print()
        print_table(
            ("SETTING", "VALUE", "FROM"), [(one.name, one.value, one.variable or one.source) for one in settings]
        )
    if has_failed(findings):
        raise CommandFailed(summary(findings), ExitCode.FAILED)
    if not as_json:
        print(summary(findings))


def print_finding(console: Console, finding: Finding) -> None:
    """Print one line, and what to do about it on the next."""
    level = Text(finding.level.ljust(_LEVEL_WIDTH), style=_STYLES[finding.level])
    console.print(Text.assemble(level, "  ", finding.area.ljust(_AREA_WIDTH), "  ", finding.text))
    if finding.advice:
        console.print(Text(" " * (_LEVEL_WIDTH + _AREA_WIDTH + 4) + finding.advice, style="italic"))


def examine(unknown: list[str], effective: list[EffectiveSetting]) -> Iterator[Finding]:
    """One finding after the other; some take seconds. Nothing is changed."""
    yield from inspect_environment(unknown, effective)
    yield from inspect_engine()
    try:
        settings = CliSettings.load()
    except StartupError:
        return  # reported above; without settings the rest cannot be checked
    home = real_home(Path(settings.home))
    record = read_record(home) if is_locked(home) else None
    yield from inspect_devices(in_use=record is not None)
    models = settings.models.expanduser() if settings.models is not None else home / "models"
    yield from inspect_disks(home, models)
    yield from inspect_unfinished(models)
    checked = None
    if models.is_dir():
        checked = check_models(models)
        yield from assess_models(checked, directory=str(models))
    else:
        yield ok("models", f"none yet: there is no {models}")
    yield from inspect_state(home)
    yield from inspect_limits()
    yield from inspect_certificates(settings.trust or home / "trust")
    yield from inspect_redis(settings.redis_url or (record.redis_url if record is not None else None))
    yield from inspect_ports(settings, record)
    yield from _server(settings, record, named=frozenset(checked.broken if checked is not None else ()))


def _server(settings: CliSettings, record: ClusterRecord | None, *, named: frozenset[str]) -> Iterator[Finding]:
    try:
        server = Server.of(settings)
    except CommandFailed as error:
        yield fail("server", str(error), "correct the setting that it names")
        return
    yield from inspect_server(server, expected=bool(settings.host) or record is not None, named=named)
