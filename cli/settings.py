"""What the command line reads from the environment."""

from pathlib import Path

from common.settings import PunaSettings


class CliSettings(PunaSettings):
    """None: not said, so that a command can look elsewhere (its options, the state of a running cluster)."""

    # `puna up` listens there, every other command dials it.
    host: str | None = None
    grpc_host: str | None = None
    # What every command but `puna up` and `puna keys` shows the gateway.
    api_key: str | None = None
    # State, sockets, logs and models of the one-machine cluster.
    home: Path = Path("~/.puna")
    # A directory with GGUF files instead of $PUNA_HOME/models.
    models: Path | None = None
    # The file of API keys that `puna keys` edits and gateways read.
    api_keys_file: str = ""
    # A Redis of one's own instead of the embedded one.
    redis_url: str | None = None
