"""run/puna.json: what runs in a home and where, for the other commands and for the next start."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cli.core.server_address import connect_url

_NAME = "puna.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRecord:
    """One supervised process. `pid` is None while it waits to be started again."""

    state: str
    pid: int | None
    # Start time of the process in clock ticks since boot: with the pid it names one process for ever.
    start_ticks: int | None
    restarts: int
    metrics_address: str | None
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord:
    """A supervisor and its services."""

    pid: int
    start_ticks: int
    version: str
    started_at_unix_s: float
    http_address: str
    grpc_address: str
    discovery_address: str
    scheduler_address: str
    redis_url: str
    home: str
    run: str
    ready: bool = False
    tls: bool = False  # the gateway serves HTTPS
    services: dict[str, ServiceRecord] = field(default_factory=dict)

    @property
    def http_url(self) -> str:
        """The URL for HTTP clients."""
        return connect_url(self.http_address, tls=self.tls)


def write_record(home: Path, record: ClusterRecord) -> None:
    """Replace the file in one step: a reader sees the old or the new one."""
    path = home / "run" / _NAME
    temporary = path.with_suffix(".json.new")
    temporary.write_text(json.dumps(asdict(record), indent=1))
    temporary.replace(path)


def read_record(home: Path) -> ClusterRecord | None:
    """Read the record; None if there is none, or none that this version can read."""
    try:
        fields = json.loads((home / "run" / _NAME).read_text())
        services = {name: ServiceRecord(**record) for name, record in fields.pop("services").items()}
        return ClusterRecord(**fields, services=services)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def remove_record(home: Path) -> None:
    """Remove the file: nothing runs."""
    (home / "run" / _NAME).unlink(missing_ok=True)
