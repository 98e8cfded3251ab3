"""What the host reads from the environment."""

from pathlib import Path

from common.settings import PunaSettings


class HostSettings(PunaSettings):
    """Environment names are PUNA_ and the field's name in capitals."""

    home: Path = Path("~/.puna")
    models: Path | None = None  # default: models/ in `home`
    node_id: str = ""  # default: a random one, kept in `home`
    node_listen: str = "127.0.0.1:7603"
    node_advertise: str = ""  # how others reach the host; default: what it listens on
    # What runners listen on: "unix:" = a socket for each under `home`, or host:0.
    runner_listen: str = "unix:"
    runner_advertise: str = ""  # the host name under which others reach runners that listen on TCP
    discovery_address: str = "127.0.0.1:7601"
    # Lend devices to runners of other nodes, and let runners here use theirs.
    rpc: bool = False
    tunnel_listen: str = "127.0.0.1:0"  # where other hosts reach what is lent; TLS, and nobody without a lease
    tunnel_advertise: str = ""  # the host name for that; default: that of node_advertise, else what it listens on

    @property
    def home_directory(self) -> Path:
        """`home` with ~ resolved."""
        return self.home.expanduser().absolute()

    @property
    def models_directory(self) -> Path:
        """Where model files lie."""
        return self.models.expanduser().absolute() if self.models is not None else self.home_directory / "models"
