"""Notices that cards may have come or gone, and then compares: lists that cost nothing to read, before and now.

Messages of the kernel, the end of a sleep, errors of runners and the clock only ask for the comparison.
"""

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from common.telemetry.logs import get_logger
from runner.core.devices.card_changes import CardChanges, compare_cards, concerns_cards, parse_uevent
from runner.core.devices.gpu_memory import normal_pci_id

log = get_logger()

# A driver that comes up sends many messages; a moment after the first one there is more to see.
SETTLE_S = 0.5
SYSFS = Path("/sys")
# The first digits of a PCI class: display controllers, and processing accelerators.
_CLASSES = ("0x03", "0x12")
# The two clocks are read one after the other, and drift apart by less than this.
NOTICED_S = 1.0
_NETLINK_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1
MESSAGE_BYTES_MAX = 16 * 1024  # the kernel's own limit is 2 KiB
# Of one turn of the loop: a machine that starts up has thousands of messages.
MESSAGES_MAX = 256

OpenSocket = Callable[[], socket.socket]


def open_uevents() -> socket.socket:
    """Open the socket of the kernel's messages.

    Raises:
        OSError: this machine has none, or this process may not hear them.
    """
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_KOBJECT_UEVENT)
    try:
        opened.bind((0, _KERNEL_GROUP))
    except OSError:
        opened.close()
        raise
    return opened


@contextmanager
def hearing(heard: Callable[[], None], *, open_socket: OpenSocket = open_uevents) -> Iterator[None]:
    """Call `heard` whenever a card may have come or gone. Where messages cannot be had, say so once and go on."""
    try:
        source = open_socket()
    except (OSError, AttributeError) as error:  # no such family on other systems than Linux
        log.info("uevents.none", text=str(error))
        yield
        return
    source.setblocking(False)
    loop = asyncio.get_running_loop()

    def read() -> None:
        for _ in range(MESSAGES_MAX):
            try:
                message, sender = source.recvfrom(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENOBUFS:  # more than were read in time: one of them may have been ours
                    heard()
                    continue
                log.warning("uevents.broken", text=str(error))
                loop.remove_reader(source)
                return
            if not message:  # it was closed at the other end
                loop.remove_reader(source)
                return
            if _is_kernels(sender):
                event = parse_uevent(message)
                if event is not None and concerns_cards(event):
                    log.debug("uevents.card", action=event.action, path=event.path)
                    heard()

    loop.add_reader(source, read)
    try:
        yield
    finally:
        loop.remove_reader(source)
        source.close()


def _is_kernels(sender: object) -> bool:
    """Other processes may send to the same group; the kernel's port is 0."""
    return not isinstance(sender, tuple) or sender[0] == 0


def suspended_s() -> float:
    """Return the time that the machine has slept since it was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


class SleepWatch:
    """Detects a sleep of the machine: the boot clock ran on while the monotonic one stood still."""

    def __init__(self, read: Callable[[], float] = suspended_s) -> None:
        self._read = read
        self._slept_s = read()

    def woke_up(self) -> bool:
        """Return True if the machine slept since the last look."""
        before, self._slept_s = self._slept_s, self._read()
        return self._slept_s - before > NOTICED_S


def read_pci_cards(sysfs: Path = SYSFS) -> dict[str, str]:
    """List the cards on the PCI bus by address, each with its driver and version; empty: none is bound.

    It touches no card, and does not depend on their drivers. Without a PCI bus there are no cards.
    """
    cards = {}
    for slot in sorted((sysfs / "bus/pci/devices").glob("*")):
        if _text(slot / "class").startswith(_CLASSES):
            driver = _driver(slot)
            version = _text(sysfs / "module" / driver / "version") if driver else ""
            cards[normal_pci_id(slot.name)] = f"{driver} {version}".strip()
    return cards


def _driver(slot: Path) -> str:
    with contextlib.suppress(OSError):
        return (slot / "driver").readlink().name
    return ""


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text().strip()
    return ""


class HotPlug:
    """`reprobe_s`: how often it compares unasked. `read` lists the cards of the bus."""

    def __init__(
        self,
        *,
        reprobe_s: float,
        read: Callable[[], Mapping[str, str]] = read_pci_cards,
        open_socket: OpenSocket = open_uevents,
        sleep_watch: SleepWatch | None = None,
    ) -> None:
        self._reprobe_s = reprobe_s
        self._read = read
        self._open_socket = open_socket
        self._sleep_watch = sleep_watch or SleepWatch()
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Compare soon."""
        self._asked.set()

    def woke_up(self) -> bool:
        """Return True if the machine slept since the last look; then there is a comparison, too."""
        woke = self._sleep_watch.woke_up()
        if woke:
            self.ask()
        return woke

    async def watch(self, compared: Callable[[CardChanges], None]) -> None:
        """Tell the outcome of every comparison; runs for ever."""
        with hearing(self.ask, open_socket=self._open_socket):
            before = await asyncio.to_thread(self._read)
            while True:
                await self._wait()
                now = await asyncio.to_thread(self._read)
                changes, before = compare_cards(before, now), now
                if changes:
                    fields = {name: sorted(getattr(changes, name)) for name in ("came", "gone", "changed")}
                    log.warning("devices.changed", **fields)
                compared(changes)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._reprobe_s):
                await self._asked.wait()
        except TimeoutError:
            return
        await asyncio.sleep(min(SETTLE_S, self._reprobe_s))
        self._asked.clear()
