"""What the host reads from the environment."""

from pathlib import Path

from pydantic import Field, field_validator

from common.network import is_private_listener
from common.settings import PunaSettings
from runner.core.device_settings import (
    DeviceSettings,
    IntegratedGpus,
    parse_amounts,
    parse_device_ids,
    parse_rpc_servers,
)
from runner.core.registry.allowed import DEFAULT_REGISTRIES, parse_registries


class HostSettings(PunaSettings):
    """Environment names are PUNA_ and the field's name in capitals."""

    home: Path = Path("~/.puna")
    models: Path | None = None  # default: models/ in `home`
    node_id: str = ""  # default: a random one, kept in `home`
    node_listen: str = "127.0.0.1:7603"
    node_advertise: str = ""  # how others reach the host; default: what it listens on
    noprune: bool = False  # keep blobs that no model of the store needs any more
    blob_max_bytes: int = Field(default=2**40, gt=0)  # the longest blob that is taken in
    # Registries that pulls may name: "host", "http://host:port" (plain HTTP where a pull asks for it),
    # "host=other" (the other host gives its tokens).
    registries: str = DEFAULT_REGISTRIES
    registry_auth_file: Path | None = None  # user names and passwords by registry, as container tools write them
    # What runners listen on: "unix:" = a socket for each under `home`, or host:0.
    runner_listen: str = "unix:"
    runner_advertise: str = ""  # the host name under which others reach runners that listen on TCP
    discovery_address: str = "127.0.0.1:7601"
    # RPC servers whose devices belong to this node: "host:port,host:port=own" (auto, host or own memory).
    rpc_devices: str = ""
    # Amounts by device: "5%", "512MiB", "GPU-1=1GiB,GPU-2=10%". Without a device: all but the CPU.
    device_overhead: str = ""  # never promised
    device_max_bytes: str = ""  # the most that placements may take together
    device_env: dict[str, dict[str, str]] = Field(default_factory=dict)  # by device id, "*" for all
    excluded_devices: str = ""  # ids, comma separated
    integrated_gpus: IntegratedGpus = IntegratedGpus.AUTO
    reprobe_s: float = Field(default=60.0, gt=0)
    # Lend devices to runners of other nodes, and let runners here use theirs.
    rpc: bool = False
    # Where other hosts reach what is lent: TLS, and nobody without a lease. Default: beside node_listen, any free port.
    tunnel_listen: str = ""
    tunnel_advertise: str = ""  # the host name for that; default: that of node_advertise, else what it listens on

    @property
    def home_directory(self) -> Path:
        """`home` with ~ resolved."""
        return self.home.expanduser().absolute()

    @property
    def models_directory(self) -> Path:
        """Where model files lie."""
        return self.models.expanduser().absolute() if self.models is not None else self.home_directory / "models"

    @property
    def devices(self) -> DeviceSettings:
        """What is said about devices, in the core's words."""
        return DeviceSettings(
            rpc_servers=parse_rpc_servers(self.rpc_devices),
            overheads=parse_amounts(self.device_overhead),
            caps=parse_amounts(self.device_max_bytes),
            environment=self.device_env,
            excluded=parse_device_ids(self.excluded_devices),
            integrated=self.integrated_gpus,
            reprobe_s=self.reprobe_s,
        )

    @field_validator("device_overhead", "device_max_bytes")
    @classmethod
    def _check_amounts(cls, text: str) -> str:
        parse_amounts(text)
        return text

    @field_validator("registries")
    @classmethod
    def _check_registries(cls, text: str) -> str:
        parse_registries(text)
        return text

    @field_validator("rpc_devices")
    @classmethod
    def _check_rpc_servers(cls, text: str) -> str:
        """The protocol knows no one and hides nothing, so only this machine may be on the way."""
        for server in parse_rpc_servers(text):
            if server.address.startswith("unix:") or not is_private_listener(server.address):
                raise ValueError(f"{server.address} is no address of this machine; write 127.0.0.1:port")
        return text
