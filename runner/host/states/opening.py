"""Opens the saved states of a node with the operator's settings."""

from common.clock import Clock
from common.errors import StartupError
from common.telemetry.logs import get_logger
from runner.core.states.budget import TierBudget
from runner.host.home import HostHome
from runner.host.settings import HostSettings
from runner.host.states.disk import DiskTier
from runner.host.states.peers import PeerStates
from runner.host.states.store import NodeStates
from runner.ram import read_host_memory

log = get_logger()


async def open_states(
    settings: HostSettings, home: HostHome, clock: Clock, *, node_id: str
) -> tuple[NodeStates, PeerStates]:
    """Open both tiers with what an earlier host left, and the way to other nodes. Without a usable disk, RAM is left.

    Raises:
        StartupError: what is to be forgotten cannot be read.
    """
    ram_bytes = settings.states_ram_amount.of(read_host_memory().total_bytes)
    disk_bytes = settings.states_disk_amount.count_bytes if ram_bytes else 0
    disk: DiskTier | None = None
    if disk_bytes:
        try:
            disk = DiskTier(home.states_directory, home.states_key_path)
        except OSError as error:
            log.warning("states.disk_unusable", text=str(error))
    tenant = settings.states_tenant_amount
    try:
        states = NodeStates(
            clock,
            ram=TierBudget(bytes_max=ram_bytes, tenant_bytes_max=tenant.of(ram_bytes)),
            disk_budget=TierBudget(
                bytes_max=disk_bytes if disk is not None else 0, tenant_bytes_max=tenant.of(disk_bytes)
            ),
            disk=disk,
            orders_path=home.forgotten_path,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StartupError(
            f"cannot read {home.forgotten_path}: {error}; remove it and {home.states_directory} together"
        ) from error
    await states.load()
    return states, PeerStates(states, clock, node_id=node_id, discovery_addresses=settings.discovery_address)
