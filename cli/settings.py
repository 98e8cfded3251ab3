"""Settings of the command line."""

from pathlib import Path

from common.audit.acts import ActLog
from common.settings import PunaSettings

AUDIT_LOG_NAME = "audit.jsonl"


class CliSettings(PunaSettings):
    """None: not said, so that a command can look elsewhere (its options, the state of a running cluster)."""

    host: str | None = None
    """`puna up` listens there, every other command dials it; 127.0.0.1:11434."""
    grpc_host: str | None = None
    """Where `puna up` serves gRPC; 127.0.0.1:11435."""
    api_key: str | None = None
    """The key that commands show the gateway."""
    api_key_file: Path | None = None
    """A file with that key, readable only by its owner; PUNA_API_KEY takes precedence."""
    home: Path = Path("~/.puna")
    """State, sockets, logs and models of the cluster on one machine."""
    models: Path | None = None
    """A directory of models instead of `$PUNA_HOME/models`."""
    api_keys_file: str = ""
    """The file of API keys that `puna keys` edits and gateways read."""
    redis_url: str | None = None
    """A Redis of your own instead of the embedded one."""
    audit_log: str | None = None
    """A file of JSON lines with each change that a command makes to keys, tokens and certificates, for the gateway and
    the discovery of `puna up`, too. Not set: `audit.jsonl` in `PUNA_HOME`, or in the directory that a command is given.
    Empty: none is written."""
    zygote: bool = True
    """Fork services and runners from a process that has imported what they need; else each has an interpreter of its
    own."""
    tls_cert: Path | None = None
    """Read by the gateway; where it is set, `puna up` serves HTTPS, and commands know this machine's server by it."""


def acts_in(place: Path) -> ActLog:
    """Return the log of what a command changes in a directory."""
    said = CliSettings.load().audit_log
    if said is None:
        return ActLog(place.expanduser() / AUDIT_LOG_NAME)
    return ActLog(Path(said).expanduser() if said else None)
