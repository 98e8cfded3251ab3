"""Devices of the node and the state of each. No waiting here: the shell delivers findings."""

from collections.abc import Collection, Iterable

from common.clock import Clock
from common.telemetry.logs import get_logger
from protos import cluster_pb2
from runner.core.devices import device_health as health
from runner.core.devices.dedupe import Listed, choose_entries
from runner.core.devices.device_health import CheckFailure, Condition, DeviceHealth
from runner.core.devices.device_settings import DeviceSettings, RpcServer
from runner.core.devices.gpu_memory import GpuMemory, find_card, is_slice
from runner.core.devices.memory import HostMemory
from runner.engine.devices.rpc_hello import RpcMemory
from runner.host.devices.device_entry import Entry
from runner.host.devices.device_notes import DeviceNotes
from runner.host.devices.device_probe import CheckResult, FoundDevices, bare_cpu
from runner.host.devices.rpc_servers import ServerAnswer, lent_device_id, to_device, unseen_device

log = get_logger()

# A server that keeps silent for longer is not only busy with another client.
SILENT_S_MAX = 5.0
LENT_MAX = 16  # devices of one server
NOT_LISTED_YET = "the engine is being asked what there is"
_HELPERS = (cluster_pb2.DEVICE_TYPE_CPU, cluster_pb2.DEVICE_TYPE_ACCELERATOR)


class DeviceTable:
    """`entries` has everything that was ever listed, `shown` one entry for each card."""

    def __init__(self, clock: Clock, settings: DeviceSettings, notes: DeviceNotes) -> None:
        self.entries: list[Entry] = []
        self.shown: list[Entry] = []
        self.engine_build = ""
        self.backends: tuple[str, ...] = ()
        self.hidden: tuple[str, ...] = ()  # backends that no process may meet
        self._known_to_drivers: set[tuple[str, str]] = set()  # cards that the engine was asked about: key, driver
        self._clock = clock
        self._settings = settings
        self._notes = notes

    def find(self, device_id: str) -> Entry | None:
        """Return the entry that is used for a device."""
        return next((entry for entry in self.shown if entry.id == device_id), None)

    def to_check(self) -> list[Entry]:
        """Entries that may not be used before a test."""
        return [
            entry for entry in self.entries if entry.health.needs_check and not entry.is_stand_in and not entry.is_cpu
        ]

    @property
    def wants_listing(self) -> bool:
        """It is time to see whether a backend can be listed again."""
        return any(entry.is_stand_in and entry.health.needs_check for entry in self.entries)

    def show_ram(self) -> None:
        """All that is known before the engine has answered, and not to be used before."""
        entry = self._new_entry(bare_cpu())
        if entry.health.condition is Condition.OK:
            entry.health = DeviceHealth(reason=NOT_LISTED_YET)
        self.entries = self.shown = [entry]

    def take_found(self, found: FoundDevices) -> None:
        """Apply a listing of the engine: entries stay, appear, return and get lost."""
        before = {(entry.id, entry.device.backend): entry for entry in self.entries if entry.server is None}
        local = []
        for device in found.report.devices or (bare_cpu(),):
            entry = before.pop((device.id, device.backend), None) or self._new_entry(device)
            entry.device.name, entry.device.description = device.name, device.description
            if entry.is_cpu and entry.health.condition is Condition.UNCHECKED:
                entry.health = health.pass_check(entry.health)  # its first test
            if entry.is_cpu and entry.health.condition is Condition.FAILED:
                self.set_health(
                    entry, health.pass_check(DeviceHealth())
                )  # the engine could not list it, and now it can
            self.set_health(entry, health.find_again(entry.health))
            if device.id in found.broken:
                self._fail(entry, found.broken[device.id])
            local.append(entry)
        if found.failure is not None:
            self._fail(local[0], found.failure)
        left = [entry for entry in before.values() if not entry.is_stand_in]
        for entry in left:
            self.set_health(entry, health.lose(entry.health, "the engine does not list it any more"))
        lent = [entry for entry in self.entries if entry.server is not None] or self._unseen_lent()
        self.entries = [*local, *left, *lent]
        self.engine_build, self.backends = found.report.engine_build, tuple(found.report.backends)
        self.hidden = found.hidden
        self.choose()

    def take_cards(self, cards: list[GpuMemory]) -> bool:
        """Apply the drivers' list of cards and driver versions. True: one is new, the engine must list again.

        The engine need not list every card that a driver has: it is asked about each of them once.
        """
        known = self._known_to_drivers
        listed = {(card.key, card.driver) for card in cards}
        for entry in self.entries:
            card = find_card(cards, entry.device.pci_id, entry.id)
            if card is not None:
                known.add((card.key, card.driver))
                self.set_health(entry, health.see_driver(health.find_again(entry.health), card.driver))
            elif entry.has_card:
                self.set_health(entry, health.lose(entry.health, "its driver does not list it any more"))
        self._known_to_drivers = known & listed  # one that goes is new when it returns
        return not listed <= known

    def ask_about(self, cards: Iterable[GpuMemory]) -> None:
        """Note the cards that are there as the engine is asked to list."""
        self._known_to_drivers = {(card.key, card.driver) for card in cards}

    def lose_from_bus(self, addresses: Collection[str]) -> None:
        """Mark cards that are no longer on the bus. A driver's report of a card wins."""
        for entry in self.entries:
            if entry.device.pci_id in addresses and not entry.has_card:
                self.set_health(entry, health.lose(entry.health, "it is no longer on the PCI bus"))

    def take_answer(self, answer: ServerAnswer, ram: HostMemory) -> list[tuple[Entry, RpcMemory]]:
        """Apply the answer of an RPC server; return its entries with their memory."""
        ours = [entry for entry in self.entries if entry.server == answer.server]
        now_s = self._clock.now_s()
        if not answer.lent:
            for entry in ours:
                if answer.gone or now_s - entry.read_at_s > SILENT_S_MAX:
                    self.set_health(entry, health.lose(entry.health, answer.reason))
            return []
        heard = []
        for number, memory in enumerate(answer.lent):
            known = next((one for one in ours if one.lent_number == number), None)
            if known is None or not known.device.total_bytes:
                entry = self._place_lent(answer.server, number, memory, ram, known)
            else:
                entry = known
            self.set_health(entry, health.find_again(entry.health))
            heard.append((entry, memory))
        for entry in ours:
            if entry.lent_number >= len(answer.lent):
                self.set_health(entry, health.lose(entry.health, f"{answer.server.address} does not lend it any more"))
        return heard

    def assume_used(self, entries: Iterable[Entry], ram: HostMemory) -> None:
        """Accept devices in use by runners of an earlier host: that is their test, and they must not be asked."""
        for entry in entries:
            total_bytes = self._notes.of(entry.id).total_bytes
            if entry.server is not None and not entry.device.total_bytes and total_bytes:
                memory = RpcMemory(free_bytes=total_bytes, total_bytes=total_bytes)
                entry.device = to_device(entry.server, entry.lent_number, memory, ram)
                entry.unused_free_bytes = entry.device.free_bytes = entry.device.total_bytes
            if entry.device.total_bytes:
                self.set_health(entry, health.pass_check(health.find_again(entry.health)))

    def take_check(self, entry: Entry, result: CheckResult) -> None:
        """Apply the result of a test. The CPU is only timed."""
        note = self._notes.of(entry.id)
        if result.device is not None:
            entry.device.description = result.device.description or entry.device.description
            if result.device.speed_bytes_s:
                note.speed_key, note.speed_bytes_s = self.speed_key(entry), result.device.speed_bytes_s
            entry.device.speed_bytes_s = note.speed(self.speed_key(entry))
        if entry.is_cpu:
            return
        if result.failure is not None:
            self._fail(entry, result.failure)
        else:
            self.set_health(entry, health.pass_check(entry.health))

    def speed_key(self, entry: Entry) -> str:
        """Return the key of a measured speed: everything it depends on."""
        return f"{self.engine_build}, {entry.device.driver}" if entry.device.driver else self.engine_build

    def knows_speed(self, entry: Entry) -> bool:
        """Fill in a known speed; True: no measurement is needed."""
        entry.device.speed_bytes_s = self._notes.of(entry.id).speed(self.speed_key(entry))
        return bool(entry.device.speed_bytes_s)

    def choose(self) -> None:
        """One entry for each card; one that works stands before one that does not."""
        chosen = choose_entries(
            [Listed(device=entry.facts(), usable=entry.health.condition is Condition.OK) for entry in self.entries]
        )
        # A lent device that has not answered yet has no size, nor has a stand-in; they are shown all the same.
        self.shown = [
            entry
            for index, entry in enumerate(self.entries)
            if chosen.get(index) == index or entry.server is not None or entry.is_stand_in
        ]
        for index, used in chosen.items():
            if used != index:
                log.info(
                    "device.duplicate", device=self.entries[index].device.name, used=self.entries[used].device.name
                )

    def set_health(self, entry: Entry, after: DeviceHealth) -> None:
        """Every change of state passes here, is logged, and kept if a restart must not forget it."""
        before, entry.health = entry.health, after
        if after is before:
            return
        note = self._notes.of(entry.id)
        note.take_health(after)
        if entry.server is not None:
            note.total_bytes = entry.device.total_bytes
        if (after.condition, after.reason) != (before.condition, before.reason):
            write = log.info if after.condition is Condition.OK else log.warning
            write("device.state", device=entry.id, state=after.condition.value, reason=after.reason)

    def _fail(self, entry: Entry, failure: CheckFailure) -> None:
        now_s = self._clock.wall_unix_s()
        self.set_health(entry, health.fail_check(entry.health, failure, now_unix_s=now_s, driver=entry.device.driver))

    def _new_entry(self, device: cluster_pb2.Device, server: RpcServer | None = None, number: int = 0) -> Entry:
        kept = cluster_pb2.Device()
        kept.CopyFrom(device)
        kept.alone = is_slice(device.id)
        if not kept.alone:  # the address of a slice is that of its card
            self._notes.show(device.id, device.pci_id)
        state = self._notes.of(device.id).health()
        if device.id in self._settings.excluded:
            state = health.barred(health.BARRED_BY_SETTING)
        elif device.type in _HELPERS:
            state = health.pass_check(state)
        return Entry(
            device=kept,
            health=state,
            read_at_s=self._clock.now_s(),
            server=server,
            lent_number=number,
            unused_free_bytes=device.free_bytes,
        )

    def _unseen_lent(self) -> list[Entry]:
        """Return the remembered devices of each server, at least one, lost until it answers."""
        return [
            self._unseen_entry(server, number)
            for server in self._settings.rpc_servers
            for number in range(LENT_MAX)
            if number == 0 or self._notes.knows(lent_device_id(server, number))
        ]

    def _unseen_entry(self, server: RpcServer, number: int) -> Entry:
        entry = self._new_entry(unseen_device(server, number), server, number)
        entry.health = health.lose(entry.health, f"{server.address} has not answered yet")
        return entry

    def _place_lent(
        self, server: RpcServer, number: int, memory: RpcMemory, ram: HostMemory, unseen: Entry | None
    ) -> Entry:
        entry = self._new_entry(to_device(server, number, memory, ram), server, number)
        if unseen is not None:
            entry.health = unseen.health
            self.entries = [entry if known is unseen else known for known in self.entries]
        else:
            self.entries = [*self.entries, entry]
        return entry
