"""Everything that `puna doctor` looks at, in the order in which it is told."""

from collections.abc import Iterator
from pathlib import Path

from cli.cluster.home import real_home
from cli.cluster.lock import is_locked
from cli.cluster.state_file import ClusterRecord, read_record
from cli.core.doctor.findings import Finding, fail
from cli.doctor.engine import look_at_devices, look_at_engine
from cli.doctor.environment import look_at_environment
from cli.doctor.files import look_at_disks, look_at_limits, look_at_models
from cli.doctor.ports import look_at_ports
from cli.doctor.redis import look_at_redis
from cli.doctor.server import look_at_server
from cli.errors import CommandFailed
from cli.server import Server
from cli.settings import CliSettings
from common.effective_settings import EffectiveSetting
from common.startup_error import StartupError


def examine(unknown: list[str], effective: list[EffectiveSetting]) -> Iterator[Finding]:
    """One finding after the other; some take seconds. Nothing is changed."""
    yield from look_at_environment(unknown, effective)
    yield from look_at_engine()
    try:
        settings = CliSettings.load()
    except StartupError:
        return  # said above; without it nobody knows where to look
    home = real_home(Path(settings.home))
    record = read_record(home) if is_locked(home) else None
    yield from look_at_devices(in_use=record is not None)
    models = settings.models.expanduser() if settings.models is not None else home / "models"
    yield from look_at_disks(home, models)
    yield from look_at_models(models)
    yield from look_at_limits()
    yield from look_at_redis(settings.redis_url or (record.redis_url if record is not None else None))
    yield from look_at_ports(settings, record)
    yield from _server(settings, record)


def _server(settings: CliSettings, record: ClusterRecord | None) -> Iterator[Finding]:
    try:
        server = Server.of(settings)
    except CommandFailed as error:
        yield fail("server", str(error), "correct the setting that it names")
        return
    yield from look_at_server(server, expected=bool(settings.host) or record is not None)
