"""Settings of the host from the environment."""

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from common.network import is_private_listener
from common.settings import PunaSettings
from runner.core.devices.device_settings import (
    Amount,
    DeviceSettings,
    IntegratedGpus,
    parse_amount,
    parse_amounts,
    parse_device_ids,
    parse_rpc_servers,
)
from runner.core.registry.allowed import DEFAULT_REGISTRIES, parse_registries


class HostSettings(PunaSettings):
    """Environment names are PUNA_ and the field's name in capitals."""

    home: Path = Path("~/.puna")
    """State of the node; discovery keeps the list of removed nodes there."""
    models: Path | None = None
    """Its models: `*.gguf` files, or the directory of an Ollama store; `models` in `PUNA_HOME` if unset."""
    node_id: str = ""
    """How the node is known; empty: a random id, kept in `PUNA_HOME`."""
    node_listen: str = "127.0.0.1:7603"
    """Where schedulers, gateways and other hosts ask."""
    node_advertise: str = ""
    """How others dial it; empty: as it listens."""
    noprune: bool = False
    """Keep blobs that no model of the store needs any more."""
    blob_max_bytes: int = Field(default=2**40, gt=0)
    """The longest blob that is taken in."""
    registries: str = DEFAULT_REGISTRIES
    """Registries that pulls may name: `host`, `http://host:port` (plain HTTP where a pull asks for it), `host=other`
    (the other host gives its tokens)."""
    registry_auth_file: Path | None = None
    """User names and passwords by registry, as container tools write them."""
    runner_listen: str = "unix:"
    """What runners listen on: `unix:`, a socket for each under `PUNA_HOME`, or a host with port 0, where gateways are
    on other machines."""
    runner_advertise: str = ""
    """The host name under which others reach runners that listen on TCP."""
    production: bool = False
    """Refuse every fault of `puna chaos` on this node."""
    zygote: bool = True
    """Fork runners from one process that has imported what they need; off: each starts an interpreter of its own."""
    discovery_address: str = "127.0.0.1:7601"
    """Where to register: several with commas between them, or a name with several addresses. A host registers with
    each."""
    rpc_devices: str = ""
    """llama.cpp RPC servers whose devices belong to this node, `127.0.0.1:5001,127.0.0.1:5002=own` (memory: auto,
    host or own); only addresses of this machine, because the protocol has no authentication."""
    device_overhead: str = ""
    """Memory of a device that is never promised: `512MiB`, `5%`, or by device `GPU-5e1f…=2GiB,10%`. Without a device
    it is for all but the CPU."""
    device_max_bytes: str = ""
    """The most that models may take of a device together, written likewise."""
    device_reserve: str = ""
    """Memory of a process on a device beside its model, written likewise; empty: 457 MiB, then as loads have shown."""
    device_env: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Environment of processes on a device, as JSON: `{"GPU-5e1f…": {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}}`; `"*"`
    for all devices."""
    excluded_devices: str = ""
    """Ids of devices that are not used, comma separated."""
    integrated_gpus: IntegratedGpus = IntegratedGpus.AUTO
    """`auto`: only where a node has no discrete GPU; `on`, `off`."""
    count_swap: bool = False
    """Swap counts as RAM that models may use. It is shown in any case."""
    reprobe_s: float = Field(default=60.0, gt=0)
    """How often a host compares the cards of its drivers and of the PCI bus with those that it knows, unasked, and
    repeats what failed and is due."""
    probe_timeout_s: float = Field(default=30.0, gt=0)
    """How long the engine has to list the devices, and then all of them together to compute; then it is killed."""
    rpc: bool = False
    """Lend devices to models that no single node holds, and use those of others."""
    tunnel_listen: str = ""
    """Where other hosts reach lent devices: TLS 1.3, open to the certificate of a lease only; empty: a free port
    beside `PUNA_NODE_LISTEN`."""
    tunnel_advertise: str = ""
    """The host name for that; empty: that of `PUNA_NODE_ADVERTISE`."""

    states_ram: str = "5%"
    """RAM for saved states of conversations, `2GiB` or a share of the node's; it is not promised to models. `0`: no
    state outlives its runner."""
    states_disk: str = "8GiB"
    """Disk space for saved states, under `PUNA_HOME`; `0`: none outlives the host."""
    states_tenant: str = "50%"
    """The most of each that one tenant gets, and the size of the largest state; a share."""

    @property
    def states_ram_amount(self) -> Amount:
        """`states_ram` as a value."""
        return parse_amount(self.states_ram)

    @property
    def states_disk_amount(self) -> Amount:
        """`states_disk` as a value."""
        return parse_amount(self.states_disk)

    @property
    def states_tenant_amount(self) -> Amount:
        """`states_tenant` as a value."""
        return parse_amount(self.states_tenant)

    @property
    def home_directory(self) -> Path:
        """`home` with ~ resolved."""
        return self.home.expanduser().absolute()

    @property
    def models_directory(self) -> Path:
        """Directory of model files."""
        return self.models.expanduser().absolute() if self.models is not None else self.home_directory / "models"

    @property
    def devices(self) -> DeviceSettings:
        """Settings of devices as values of the core."""
        return DeviceSettings(
            rpc_servers=parse_rpc_servers(self.rpc_devices),
            overheads=parse_amounts(self.device_overhead),
            caps=parse_amounts(self.device_max_bytes),
            reserves=parse_amounts(self.device_reserve),
            environment=self.device_env,
            excluded=parse_device_ids(self.excluded_devices),
            integrated=self.integrated_gpus,
            reprobe_s=self.reprobe_s,
            probe_timeout_s=self.probe_timeout_s,
            count_swap=self.count_swap,
        )

    @field_validator("device_overhead", "device_max_bytes", "device_reserve")
    @classmethod
    def _check_amounts(cls, text: str) -> str:
        parse_amounts(text)
        return text

    @field_validator("states_ram", "states_disk", "states_tenant")
    @classmethod
    def _check_states(cls, text: str, info: ValidationInfo) -> str:
        """Check amounts: space of a disk is no share, and a tenant's part is nothing else."""
        amount = parse_amount(text)
        if info.field_name == "states_disk" and amount.share:
            raise ValueError("write a size such as 8GiB")
        if info.field_name == "states_tenant" and not 0 < amount.share <= 1:
            raise ValueError("write a share such as 50%")
        return text

    @field_validator("registries")
    @classmethod
    def _check_registries(cls, text: str) -> str:
        parse_registries(text)
        return text

    @field_validator("rpc_devices")
    @classmethod
    def _check_rpc_servers(cls, text: str) -> str:
        """Check that servers are on this machine: the protocol has neither authentication nor encryption."""
        for server in parse_rpc_servers(text):
            if server.address.startswith("unix:") or not is_private_listener(server.address):
                raise ValueError(f"{server.address} is no address of this machine; write 127.0.0.1:port")
        return text
