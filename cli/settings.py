"""Settings of the command line."""

from pathlib import Path

from common.settings import PunaSettings


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
    tls_cert: Path | None = None
    """Read by the gateway; where it is set, `puna up` serves HTTPS, and commands know this machine's server by it."""
