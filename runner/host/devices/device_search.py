"""Finds the devices of the node and tests them: what the engine lists, and whether each of them computes."""

import asyncio
from collections.abc import Iterable, Sequence

import orjson

from common.changes import Changes
from common.telemetry.logs import get_logger
from runner.core.devices.device_health import Condition
from runner.core.devices.device_settings import DeviceSettings
from runner.core.devices.gpu_memory import GpuMemory
from runner.core.host.environment import CARDS, device_environment, hide, limit_visibility
from runner.gpu_memory import cards_as_json
from runner.host.devices.device_entry import Entry
from runner.host.devices.device_figures import DeviceFigures
from runner.host.devices.device_notes import DeviceNotes
from runner.host.devices.device_probe import CheckRequest, check_devices, probe_apart, probe_engine
from runner.host.devices.device_table import DeviceTable
from runner.host.processes.children import run_child
from runner.ram import read_host_memory

log = get_logger()

CARDS_TIMEOUT_S = 10.0


class DeviceSearch:
    """Brings what children say into the table. One listing at a time, and one round of tests."""

    def __init__(
        self, table: DeviceTable, figures: DeviceFigures, notes: DeviceNotes, settings: DeviceSettings, changes: Changes
    ) -> None:
        self.cards: list[GpuMemory] = []  # as the drivers tell them
        self.listed = asyncio.Event()  # the engine has answered, or will not
        self.tested = asyncio.Event()
        self.wants_listing = False  # the engine must list again
        self._table = table
        self._figures = figures
        self._notes = notes
        self._settings = settings
        self._changes = changes
        self._listing = asyncio.Lock()
        self._checking = asyncio.Lock()

    async def probe(self) -> None:
        """Ask a short-lived runner what it can compute on, then test it. A failure leaves the CPU, excluded."""
        async with self._listing:
            await self._list()
        self.listed.set()
        self._changes.notify()
        await self.check()
        self.tested.set()
        await self._time_cpu()

    async def _list(self) -> None:
        self.wants_listing = False
        timeout_s, knows_cards = self._settings.probe_timeout_s, bool(self.cards)
        self._table.ask_about(self.cards)
        found, _ = await asyncio.gather(probe_engine(self._environment(), timeout_s=timeout_s), self._read_cards_once())
        if not knows_cards:
            self._table.ask_about(self.cards)
        if found.failure is not None:
            found = await probe_apart(self.cards, found.failure, timeout_s=timeout_s)
        self._table.take_found(found)
        ram = self._figures.read_ram(self._table.entries)
        self._figures.take_cards(self._table.entries, self.cards, ram)
        self.wants_listing = self._table.take_cards(self.cards) or self.wants_listing
        self._table.assume_used([entry for entry in self._table.entries if self._figures.is_used(entry)], ram)
        if not self.listed.is_set():  # later some of ours may only be about to take what they were promised
            self._figures.take_listed(self._table.entries, found.report.devices)
        self._figures.predict(self._table.entries)
        if found.failure is None:
            await self.ask_servers()
        log.info(
            "devices.found",
            build=found.report.engine_build,
            backends=list(found.report.backends),
            devices=[f"{entry.device.name} {entry.id}" for entry in self._table.shown],
        )

    async def _read_cards_once(self) -> None:
        if self.cards:
            return
        result = await run_child("gpu-memory", ["--once"], timeout_s=CARDS_TIMEOUT_S)
        try:
            if result.exit_code != 0:
                raise ValueError(result.failure())
            self.cards = [GpuMemory.from_report(card) for card in orjson.loads(result.output)]
        except (ValueError, TypeError) as error:
            log.warning("gpus.unreadable", text=str(error))

    async def ask_servers(self) -> None:
        """Ask the RPC servers that serve no client for their memory."""
        answers = await self._figures.ask_servers(self._table.entries)
        ram = read_host_memory()
        for answer in answers:
            for entry, memory in self._table.take_answer(answer, ram):
                if not self._figures.is_used(entry):  # a runner may have come meanwhile
                    self._figures.take_lent(entry, memory, ram)
        if answers:
            self._table.choose()

    def to_check(self) -> list[Entry]:
        """Return the entries that can be tested now: a lent device in use cannot, a card can."""
        entries = self._table.to_check()
        return [entry for entry in entries if entry.server is None or not self._figures.is_used(entry)]

    async def check(self) -> None:
        """Test whatever needs it, one round at a time."""
        async with self._checking:
            if any(entry.server is not None for entry in self._table.to_check()):
                await self.ask_servers()  # one that is gone needs no test
            waiting = self.to_check()
            await self._test(waiting)
            self._table.choose()
            self._notes.save()
            if any(entry.server is not None for entry in waiting):
                await self.ask_servers()  # the tests are over, and the servers can tell again
        self._changes.notify()

    async def _time_cpu(self) -> None:
        """Measure the speed of RAM; nothing waits for it."""
        cpus = [entry for entry in self._table.entries if entry.is_cpu and entry.health.condition is Condition.OK]
        async with self._checking:
            await self._test([entry for entry in cpus if not self._table.knows_speed(entry)])
            self._notes.save()
        self._changes.notify()

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
            environment=self.environment_for([entry]),
            speed=not self._table.knows_speed(entry),
        )

    def _environment(self) -> dict[str, str]:
        return {CARDS: cards_as_json(self.cards)} if self.cards else {}

    def environment_for(self, entries: Iterable[Entry]) -> dict[str, str]:
        """Return the environment of a child that may use these devices alone."""
        visible = [entry.visible for entry in entries]
        return {
            **self._environment(),
            **limit_visibility(visible, backends=self._table.backends),
            **hide(self._table.hidden),
            **device_environment(visible, self._settings.environment),
        }
