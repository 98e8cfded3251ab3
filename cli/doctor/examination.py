"""Every check of `puna doctor`, in the order of its report."""

from collections.abc import Iterator
from pathlib import Path

from cli.cluster.home import ClusterRecord, is_locked, read_record, real_home
from cli.core.doctor.assessments import assess_models
from cli.core.doctor.findings import Finding, fail, ok
from cli.doctor.environment import inspect_environment
from cli.doctor.machine import (
    check_models,
    inspect_devices,
    inspect_disks,
    inspect_engine,
    inspect_limits,
    inspect_ports,
)
from cli.doctor.server import inspect_redis, inspect_server
from cli.errors import CommandFailed
from cli.server import Server
from cli.settings import CliSettings
from common.effective_settings import EffectiveSetting
from common.startup_error import StartupError


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
    checked = None
    if models.is_dir():
        checked = check_models(models)
        yield from assess_models(checked, directory=str(models))
    else:
        yield ok("models", f"none yet: there is no {models}")
    yield from inspect_limits()
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
