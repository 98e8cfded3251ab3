"""Keeps the memory figures of a node's devices fresh: each from the best source that it has."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from common.clock import Clock
from common.telemetry.logs import get_logger
from protos import cluster_pb2
from runner.core.devices.devices import HOST_POOL
from runner.core.devices.free_figures import card_figure, lent_figure, predicted_figure, ram_figure
from runner.core.devices.gpu_memory import GpuMemory, find_card
from runner.core.devices.memory import HostMemory
from runner.engine.devices.rpc_hello import RpcMemory
from runner.host.devices.device_entry import Entry
from runner.host.devices.rpc_servers import ServerAnswer, ask_server
from runner.ram import read_host_memory

log = get_logger()

# A change of this size is reported at once, smaller ones every second.
URGENT_BYTES = 16 * 1024 * 1024


class DeviceFigures:
    """Reads for the entries that it is given; keeps none itself."""

    def __init__(
        self,
        clock: Clock,
        *,
        promised_bytes: Callable[[], Mapping[str, int]],
        in_use: Callable[[], Collection[str]],
        count_swap: bool = False,
    ) -> None:
        """`promised_bytes` and `in_use` cover this node's runners: bytes by device id, and the ids that they are on.

        `count_swap`: swap is as good as RAM.
        """
        self._clock = clock
        self._promised_bytes = promised_bytes
        self._in_use = in_use
        self._count_swap = count_swap
        self._measured: Counter[str] = Counter()

    @contextmanager
    def measuring(self, device_ids: Iterable[str]) -> Iterator[None]:
        """Keep all others from asking these devices during a measurement."""
        used = list(device_ids)
        self._measured.update(used)
        try:
            yield
        finally:
            self._measured.subtract(used)

    def is_used(self, entry: Entry) -> bool:
        """Return True if a runner or a measurement is on the device, or on another one of its server."""
        used = {*self._in_use(), *(device_id for device_id, count in self._measured.items() if count > 0)}
        if entry.server is None:
            return entry.id in used
        return any(device_id.startswith(f"RPC:{entry.server.address}/") for device_id in used)

    def read_ram(self, entries: Iterable[Entry]) -> HostMemory:
        """RAM is one pool: every device that draws from it alone has the same free bytes."""
        ram, now_s = read_host_memory(), self._clock.now_s()
        self.take_ram(entries, ram, now_s)
        return ram

    def take_ram(self, entries: Iterable[Entry], ram: HostMemory, now_s: float) -> None:
        """Use what the kernel says of RAM. Swap is shown beside it, and counted if the operator says so."""
        figure = ram_figure(self._counted(ram))
        for entry in entries:
            if entry.draws_from_ram and not entry.has_card:
                entry.take(figure, now_s)
                entry.unused_free_bytes = figure.free_bytes
            if entry.is_cpu:
                entry.device.swap_total_bytes, entry.device.swap_free_bytes = ram.swap_total_bytes, ram.swap_free_bytes

    def _counted(self, ram: HostMemory) -> HostMemory:
        return ram.counting_swap() if self._count_swap else ram

    def take_cards(self, entries: Iterable[Entry], cards: list[GpuMemory], ram: HostMemory) -> None:
        """Use what the drivers say, for the devices whose cards they know."""
        for entry in entries:
            card = find_card(cards, entry.device.pci_id, entry.id)
            if card is not None:
                entry.has_card = not card.unified
                if card.unified:
                    entry.device.pool_id = HOST_POOL
                entry.uuid, entry.device.driver = card.uuid, card.driver
                # What a card of its own maps of RAM cannot be swapped out; one without memory has the pool's figure.
                own = self._counted(ram) if card.unified else ram
                entry.take(card_figure(card, own, integrated=entry.draws_from_ram), self._clock.now_s())
                if card.processes is not None:  # else the last report stays
                    entry.processes = dict(card.processes)
                if card.vitals is not None:
                    entry.take_vitals(card.vitals, self._clock.wall_unix_s())
                    if card.vitals.xids:
                        log.warning("device.xid", device=entry.id, xids=card.vitals.xids)

    def take_lent(self, entry: Entry, memory: RpcMemory, ram: HostMemory) -> None:
        """Record the memory of an idle device as its RPC server reports it."""
        assert entry.server is not None, "only lent devices are asked for at a server"
        if not entry.draws_from_ram:
            entry.take(lent_figure(memory.total_bytes, memory.free_bytes, entry.server.pool, ram), self._clock.now_s())
            entry.unused_free_bytes = entry.device.free_bytes

    def take_listed(self, entries: Iterable[Entry], listed: Iterable[cluster_pb2.Device]) -> None:
        """Record the engine's figures from its listing, for devices without a better source.

        What our own processes hold there was not free; it is what `predict` takes off.
        """
        promised = self._promised_bytes()
        said = {(device.id, device.backend): device.free_bytes for device in listed}
        for entry in entries:
            free_bytes = said.get((entry.id, entry.device.backend))
            if free_bytes is not None and entry.server is None and not entry.has_card:
                entry.unused_free_bytes = min(entry.device.total_bytes, free_bytes + promised.get(entry.id, 0))

    def predict(self, entries: Iterable[Entry]) -> None:
        """Devices whose memory cannot be read while they are in use: what was free before, less what was promised.

        A card whose driver has fallen silent is not among them: its last figure stays, and grows stale. Nor is an idle
        lent device: its server is asked.
        """
        promised = self._promised_bytes()
        for entry in entries:
            if entry.draws_from_ram or entry.has_card or (entry.server is not None and not self.is_used(entry)):
                continue
            figure = predicted_figure(
                total_bytes=entry.device.total_bytes,
                unused_free_bytes=entry.unused_free_bytes,
                promised_bytes=promised.get(entry.id, 0),
            )
            entry.take(figure, self._clock.now_s())

    async def ask_servers(self, entries: Iterable[Entry]) -> list[ServerAnswer]:
        """Return every server without a runner of ours."""
        idle = {entry.server.address: entry.server for entry in entries if entry.server and not self.is_used(entry)}
        return list(await asyncio.gather(*(ask_server(server) for server in idle.values())))


class ReportedFigures:
    """Last report, compared to find urgent changes."""

    def __init__(self) -> None:
        self._free_bytes: dict[str, int] = {}

    def has_moved(self, entries: Iterable[Entry]) -> bool:
        """Return True if a figure has changed by more than a little since `note`."""
        return any(abs(entry.device.free_bytes - self._free_bytes.get(entry.id, 0)) > URGENT_BYTES for entry in entries)

    def note(self, entries: Iterable[Entry]) -> None:
        """Note the figures that are reported now."""
        self._free_bytes = {entry.id: entry.device.free_bytes for entry in entries}
