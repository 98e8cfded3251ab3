"""The node's devices: found by a probe, tested one by one, their free memory read again all the time.

One owner: everything here runs on the event loop. Whatever touches a driver or the engine runs in a child.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import orjson

from common.changes import Changes
from common.clock import Clock
from common.errors import DeviceNotFound
from common.telemetry.logs import get_logger
from protos import cluster_pb2
from runner.core.devices import device_health as health
from runner.core.devices.card_changes import CardChanges
from runner.core.devices.device_health import Condition, RunnerError
from runner.core.devices.device_settings import DeviceSettings
from runner.core.devices.gpu_memory import GpuMemory
from runner.core.devices.holders import HolderProcess, Holders
from runner.core.host.environment import CARDS, VisibleDevice, device_environment, hide, limit_visibility
from runner.gpu_memory import cards_as_json
from runner.host.devices.device_entry import Entry, is_discrete
from runner.host.devices.device_figures import DeviceFigures, ReportedFigures
from runner.host.devices.device_notes import DeviceNotes
from runner.host.devices.device_probe import CheckRequest, check_devices, has_slices, probe_apart, probe_engine
from runner.host.devices.device_table import DeviceTable
from runner.host.devices.gpu_watch import Asking, watch_gpus
from runner.host.devices.hot_plug import HotPlug
from runner.host.processes.children import run_child
from runner.ram import read_host_memory

log = get_logger()

LOOK_INTERVAL_S = 0.25
CARDS_TIMEOUT_S = 10.0
DRIVER_HANGS = "its driver does not answer"
FREE_PUSH_S = 1.0  # figures that moved by a little
# How long a start waits for the tests: a device that hangs must not keep the others from being used.
FIRST_CHECK_WAIT_S = 10.0


class Devices:
    """Owned by its `watch` task; the host process itself never loads the engine."""

    def __init__(
        self,
        clock: Clock,
        *,
        settings: DeviceSettings | None = None,
        notes: DeviceNotes | None = None,
        promised_bytes: Callable[[], Mapping[str, int]] = dict,
        in_use: Callable[[], Collection[str]] = frozenset,
        unreaped: Callable[[], Mapping[str, str]] = dict,
        processes: Callable[[], Sequence[HolderProcess]] = tuple,
        hot_plug: HotPlug | None = None,
    ) -> None:
        """Take the reports of this node's runners on their devices, by device id.

        `promised_bytes`: what they hold or will hold. `in_use`: that one is on it. `unreaped`: why nothing new may be
        placed there, because a process on it cannot be ended. `processes`: those that live.
        """
        self.changes = Changes()
        self._clock = clock
        self._settings = settings or DeviceSettings()
        self._notes = notes or DeviceNotes(None)
        self._unreaped = unreaped
        self._processes = processes
        self.reserved_ram_bytes: Callable[[], int] = int  # of RAM that is free, and kept for saved states
        self._holders = Holders()
        self._table = DeviceTable(clock, self._settings, self._notes)
        self._figures = DeviceFigures(
            clock, promised_bytes=promised_bytes, in_use=in_use, count_swap=self._settings.count_swap
        )
        self._reported = ReportedFigures()
        self._look = asyncio.Event()  # something beside the figures has to be looked at
        self._cards: list[GpuMemory] = []  # as the drivers list them
        self._drivers_hang = False
        self._listed = asyncio.Event()  # the engine has answered, or will not
        self._tested = asyncio.Event()
        self._wants_listing = False  # the engine must list again
        self._listing = asyncio.Lock()  # one listing at a time,
        self._checking = asyncio.Lock()  # and one round of tests
        self._hot_plug = hot_plug or HotPlug(reprobe_s=self._settings.reprobe_s)
        self._asking_drivers = Asking()
        self._first: asyncio.Task[None] | None = None

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def engine_build(self) -> str:
        """Of the engine that lists the devices; empty while none does."""
        return self._table.engine_build

    def devices(self) -> list[cluster_pb2.Device]:
        """Every device with the age of its free figure."""
        now_s, shown = self._clock.now_s(), self._table.shown
        beside_discrete = any(is_discrete(entry) for entry in shown)
        unreaped, living = self._unreaped(), self._see_holders()
        return [
            entry.report(
                self._settings,
                now_s=now_s,
                beside_discrete=beside_discrete,
                doubt=unreaped.get(entry.id, "") or (DRIVER_HANGS if self._is_silent(entry) else ""),
                holders=self._holders.on(entry.id, living, entry.processes),
                reserved_bytes=self._reserved(entry),
            )
            for entry in shown
        ]

    def _reserved(self, entry: Entry) -> int:
        return self.reserved_ram_bytes() if entry.is_cpu else 0

    def _see_holders(self) -> Sequence[HolderProcess]:
        living = self._processes()
        self._holders.see(living, self._listed_by_drivers())
        return living

    def _listed_by_drivers(self) -> set[int]:
        return {pid for entry in self._table.entries for pid in entry.processes}

    def free_bytes(self) -> dict[str, int]:
        """Return the available bytes by device id, without the operator's reserve; of RAM as of this instant."""
        self._figures.read_ram(self._table.entries)
        return {
            entry.id: max(
                0, entry.device.free_bytes - self._reserved(entry) - (entry.overhead_bytes(self._settings) or 0)
            )
            for entry in self._table.shown
            if entry.health.condition is Condition.OK and not self._is_silent(entry)
        }

    def _is_silent(self, entry: Entry) -> bool:
        """Return True while the driver of a card hangs: its figures are old, and what runs there may run well."""
        return self._drivers_hang and entry.has_card

    def limits(self) -> dict[str, int]:
        """Return the most that placements may take together, by id of the devices for which the operator says so."""
        limits = ((entry.id, entry.max_bytes(self._settings)) for entry in self._table.shown)
        return {device_id: count for device_id, count in limits if count is not None}

    def environment(self, device_ids: Iterable[str]) -> dict[str, str]:
        """Return the environment of a process on these devices: they alone, with the operator's variables."""
        entries = (self._table.find(device_id) for device_id in device_ids)
        return self._environment_for(entry for entry in entries if entry is not None)

    def serves_somebody(self, device_ids: Iterable[str]) -> bool:
        """Return True if one of them is lent by an RPC server in use: it would answer no other client."""
        entries = [self._table.find(device_id) for device_id in device_ids]
        return any(entry is not None and entry.server is not None and self._figures.is_used(entry) for entry in entries)

    def measuring(self, device_ids: Iterable[str]) -> AbstractContextManager[None]:
        """Keep all others from asking these devices during a measurement."""
        return self._figures.measuring(device_ids)

    # -- events -----------------------------------------------------------------------------------------------------

    def take_cards(self, cards: list[GpuMemory]) -> None:
        """Apply the drivers' figures, cards and versions."""
        self._cards = cards
        if self._drivers_hang:
            self._drivers_hang = False
            self._doubt_cards("its driver did not answer, and it is tested")
        listed = self._listed_by_drivers()
        self._see_holders()  # before a process that has ended is out of the list
        self._figures.take_cards(self._table.entries, cards, read_host_memory())
        if self._table.take_cards(cards) and not self.is_probing:
            self._wants_listing = True
        self._report_if_moved()
        if listed - self._listed_by_drivers():
            self.changes.notify()  # memory has been freed
        if not self.is_probing and (self._wants_listing or self._to_check()):
            self._look.set()

    def see_device_error(
        self, device_ids: Iterable[str], text: str, *, model_digest: str = "", replica: str = ""
    ) -> None:
        """Handle the end of a replica on these devices with an error that names a device."""
        blamed = set(device_ids)
        error = RunnerError(at_unix_s=self._clock.wall_unix_s(), model_digest=model_digest, replica=replica)
        for entry in self._table.entries:
            if entry.id in blamed and not entry.is_cpu:
                after = health.see_error(entry.health, error, driver=entry.device.driver, text=text)
                self._table.set_health(entry, after)
        self._notes.save()
        self._hot_plug.ask()
        self._look.set()
        self.changes.notify()

    def excuse(self, replica: str) -> None:
        """Forget the device errors of a replica that a request has ended."""
        for entry in self._table.entries:
            self._table.set_health(entry, health.excuse(entry.health, replica))
        self._notes.save()
        self._look.set()
        self.changes.notify()

    def see_crash(self, device_ids: Iterable[str], *, hung: bool = False) -> None:
        """Test what may have ended a runner on these devices: a server that lends one, or one that hangs."""
        crashed = set(device_ids)
        reason = "the engine on it made no progress" if hung else "a runner on it ended, and its server is asked"
        for entry in self._table.entries:
            if entry.id in crashed and (entry.server is not None or (hung and not entry.is_cpu)):
                after = health.doubt(entry.health, reason)
                self._table.set_health(entry, after)
                self._look.set()
        self.changes.notify()

    async def reset(self, device_id: str) -> cluster_pb2.Device:
        """Test a device again that was excluded; the answer says what came of it.

        Raises:
            DeviceNotFound: there is none of this id.
        """
        entries = [entry for entry in self._table.entries if entry.id == device_id]
        if not entries:
            raise DeviceNotFound(f"this node has no device {device_id!r}")
        for entry in entries:
            if not entry.is_cpu:
                self._table.set_health(entry, health.reset(entry.health))
        await (self.probe() if any(entry.is_stand_in for entry in entries) else self.check())
        found = next((device for device in self.devices() if device.id == device_id), None)
        return found or self._listed_again(entries[0])

    def child_request(self, device_id: str) -> CheckRequest:
        """Return how a child process finds a device.

        Raises:
            DeviceNotFound: there is none of this id.
        """
        entry = next((entry for entry in self._table.entries if entry.id == device_id), None)
        if entry is None:
            raise DeviceNotFound(f"this node has no device {device_id!r}")
        return self._check_request(entry)

    def _listed_again(self, entry: Entry) -> cluster_pb2.Device:
        """Report a stand-in as healthy: its backend lists its devices by now, in its place."""
        entry.health = health.pass_check(entry.health)
        return entry.report(self._settings, now_s=self._clock.now_s(), beside_discrete=False)

    # -- finding and testing ------------------------------------------------------------------------------------------

    def show_ram(self) -> None:
        """Show RAM before the engine has been asked."""
        self._table.show_ram()
        self._figures.read_ram(self._table.entries)

    async def start(self) -> None:
        """List the devices, and wait for their tests, but not for one that hangs: it is not used before it passes.

        An exception of the first listing is raised here.
        """
        first = self._first = asyncio.create_task(self.probe())
        await _reached(self._listed, first)
        try:
            async with asyncio.timeout(FIRST_CHECK_WAIT_S):
                await _reached(self._tested, first)
        except TimeoutError:
            log.warning("devices.tests_continue", after_s=FIRST_CHECK_WAIT_S)

    @property
    def is_probing(self) -> bool:
        """Return True before the engine's first answer: the devices are unknown."""
        return not self._listed.is_set()

    async def probe(self) -> None:
        """Ask a short-lived runner what it can compute on, then test it. A failure leaves the CPU, excluded."""
        async with self._listing:
            await self._list()
        self._listed.set()
        self.changes.notify()
        await self.check()
        self._tested.set()
        await self._time_cpu()

    async def _list(self) -> None:
        self._wants_listing = False
        await self._read_cards_once()
        timeout_s, settings = self._settings.probe_timeout_s, self._settings.environment
        self._table.ask_about(self._cards)
        named = (VisibleDevice(id=device_id, backend="") for device_id in settings)
        environment = {**self._environment(), **device_environment(named, settings)}
        cards = [card for card in self._notes.name_cards(self._cards) if card.source]
        if has_slices(cards):
            found = await probe_apart(cards, None, environment=environment, timeout_s=timeout_s)
        else:
            found = await probe_engine(environment, timeout_s=timeout_s)
        if found.failure is not None:
            found = await probe_apart(cards, found.failure, environment=environment, timeout_s=timeout_s)
        self._table.take_found(found)
        ram = self._figures.read_ram(self._table.entries)
        self._figures.take_cards(self._table.entries, self._cards, ram)
        self._wants_listing = self._table.take_cards(self._cards) or self._wants_listing
        self._table.assume_used([entry for entry in self._table.entries if self._figures.is_used(entry)], ram)
        if not self._listed.is_set():  # later some of ours may only be about to take what they were promised
            self._figures.take_listed(self._table.entries, found.report.devices)
        self._figures.predict(self._table.entries)
        if found.failure is None:
            await self._ask_servers()
        log.info(
            "devices.found",
            build=found.report.engine_build,
            backends=list(found.report.backends),
            devices=[f"{entry.device.name} {entry.id}" for entry in self._table.shown],
        )

    async def _read_cards_once(self) -> None:
        if self._cards:
            return
        result = await run_child("gpu-memory", ["--once"], timeout_s=CARDS_TIMEOUT_S)
        try:
            if result.exit_code != 0:
                raise ValueError(result.failure())
            self._cards = [GpuMemory.from_report(card) for card in orjson.loads(result.output)]
        except (ValueError, TypeError) as error:
            log.warning("gpus.unreadable", text=str(error))

    async def _ask_servers(self) -> None:
        """Ask the RPC servers that serve no client for their memory."""
        answers = await self._figures.ask_servers(self._table.entries)
        ram = read_host_memory()
        for answer in answers:
            for entry, memory in self._table.take_answer(answer, ram):
                if not self._figures.is_used(entry):  # a runner may have come meanwhile
                    self._figures.take_lent(entry, memory, ram)
        if answers:
            self._table.choose()

    def _to_check(self) -> list[Entry]:
        """Return the entries that can be tested now: a lent device in use cannot, a card can."""
        entries = self._table.to_check()
        return [entry for entry in entries if entry.server is None or not self._figures.is_used(entry)]

    async def check(self) -> None:
        """Test whatever needs it, one round at a time."""
        async with self._checking:
            if any(entry.server is not None for entry in self._table.to_check()):
                await self._ask_servers()  # one that is gone needs no test
            waiting = self._to_check()
            await self._test(waiting)
            self._table.choose()
            self._notes.save()
            if any(entry.server is not None for entry in waiting):
                await self._ask_servers()  # the tests are over, and the servers can be asked again
        self.changes.notify()

    async def _time_cpu(self) -> None:
        """Measure the speed of RAM; nothing waits for it."""
        cpus = [entry for entry in self._table.entries if entry.is_cpu and entry.health.condition is Condition.OK]
        async with self._checking:
            await self._test([entry for entry in cpus if not self._table.knows_speed(entry)])
            self._notes.save()
        self.changes.notify()

    async def _test(self, entries: Sequence[Entry]) -> None:
        requests = [self._check_request(entry) for entry in entries]
        with self._figures.measuring(entry.id for entry in entries):
            results = await check_devices(requests, timeout_s=self._settings.probe_timeout_s)
        for entry, result in zip(entries, results, strict=True):
            self._table.take_check(entry, result)

    def _check_request(self, entry: Entry) -> CheckRequest:
        return CheckRequest(
            device_id=entry.id,
            backend=entry.device.backend,
            rpc_address=entry.server.address if entry.server is not None else "",
            environment=self._environment_for([entry]),
            speed=not self._table.knows_speed(entry),
        )

    def _environment(self) -> dict[str, str]:
        return {CARDS: cards_as_json(self._notes.name_cards(self._cards))}

    def _environment_for(self, entries: Iterable[Entry]) -> dict[str, str]:
        """Return the environment of a child that may use these devices alone."""
        visible = [entry.visible for entry in entries]
        return {
            **self._environment(),
            **limit_visibility(visible, backends=self._table.backends),
            **hide(self._table.hidden),
            **device_environment(visible, self._settings.environment),
        }

    # -- watching -----------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Keep figures and states true; runs for ever."""
        try:
            await self._watch()
        finally:
            if self._first is not None:
                self._first.cancel()

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_figures())
            group.create_task(self._watch_drivers())
            group.create_task(self._watch_devices())
            group.create_task(self._hot_plug.watch(self._take_comparison))
            if self._settings.rpc_servers:
                group.create_task(self._watch_servers())

    async def _watch_figures(self) -> None:
        report_at_s = self._clock.now_s()
        living: set[int | None] = set()
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            entries = self._table.entries
            before, living = living, {process.pid for process in self._processes()}
            if living != before:
                self._asking_drivers.hurry()
            self._figures.read_ram(entries)
            self._figures.predict(entries)
            if self._hot_plug.woke_up():
                self._wake_up()
            if self._clock.now_s() >= report_at_s:
                self._report()
                report_at_s = self._clock.now_s() + FREE_PUSH_S
            else:
                self._report_if_moved()

    async def _watch_drivers(self) -> None:
        """Drivers come up late, and cards are plugged in: where there is none, look again with every comparison."""
        while True:
            self._asking_drivers.forget()
            await watch_gpus(self.take_cards, on_silence=self._see_silence, asking=self._asking_drivers)
            await self._asking_drivers.wait()

    async def _watch_servers(self) -> None:
        while True:
            await asyncio.sleep(FREE_PUSH_S)
            await self._ask_servers()
            self._report_if_moved()
            if self._to_check():
                self._look.set()

    async def _watch_devices(self) -> None:
        """List and test again when something says so; every comparison does."""
        while True:
            await self._look.wait()
            self._look.clear()
            if self.is_probing:
                await self._listed.wait()
            now_s = self._clock.wall_unix_s()
            for entry in self._table.entries:
                if not entry.is_cpu:
                    self._table.set_health(entry, health.see_time(entry.health, now_unix_s=now_s))
            if self._wants_listing or self._table.wants_listing or not self.engine_build:
                await self.probe()
            else:
                await self.check()

    def _take_comparison(self, changes: CardChanges) -> None:
        """Apply a comparison of the bus's lists, and ask for those of the drivers."""
        self._asking_drivers.ask()
        self._table.lose_from_bus(changes.gone)
        if changes.came or changes.changed:
            self._wants_listing = True
        self._look.set()
        if changes:
            self.changes.notify()

    def _see_silence(self) -> None:
        """Place nothing new on any card: a broken card makes its driver hang for all of them."""
        log.warning("drivers.hang")
        self._drivers_hang = True
        self.changes.notify()

    def _wake_up(self) -> None:
        """After a suspend drivers and cards are often not what they were."""
        log.warning("devices.woke_up")
        self._doubt_cards("the machine was asleep, and it is tested")

    def _doubt_cards(self, reason: str) -> None:
        for entry in self._table.entries:
            if not entry.is_cpu:
                self._table.set_health(entry, health.doubt(entry.health, reason))
        self._look.set()

    def _report(self) -> None:
        self._reported.note(self._table.shown)
        self.changes.notify()

    def _report_if_moved(self) -> None:
        if self._reported.has_moved(self._table.shown):
            self._report()


async def _reached(event: asyncio.Event, setter: asyncio.Task[None]) -> None:
    """Wait for an event, or raise what ended the task that was to set it."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({waiting, setter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if not event.is_set():
        setter.result()
