"""Cards that come and go while the host runs: what asks for a comparison, and what follows from one."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from common.clock import SystemClock
from runner.core.devices.card_changes import CardChanges
from runner.host.devices import hot_plug
from runner.host.devices.devices import Devices
from runner.host.devices.hot_plug import HotPlug, SleepWatch, hearing, open_uevents, read_pci_cards
from tests.fake_nvml import FakeNvml
from tests.fake_pci import plug_in, pull_out
from tests.integration.host.fake_build import CPU, GIB, LOST, OK, Engine, by_id, card, gpu
from tests.waiting import until

pytestmark = pytest.mark.behaviour("B-130")

NEVER_S = 3600.0
DRM = b"add@/devices/pci0000:00/0000:01:00.0/drm/card0\0ACTION=add\0SUBSYSTEM=drm\0SEQNUM=1\0"
NET = b"add@/devices/virtual/net/veth1\0ACTION=add\0SUBSYSTEM=net\0SEQNUM=2\0"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_plug, "SETTLE_S", 0.01)


@asynccontextmanager
async def watched(table: Devices) -> AsyncIterator[None]:
    watching = asyncio.create_task(table.watch())
    try:
        await table.start()
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


@asynccontextmanager
async def comparing(plug: HotPlug) -> AsyncIterator[Callable[[], list[CardChanges]]]:
    """Yield a function for the comparisons so far; it starts after the first one, when the list is known."""
    seen: list[CardChanges] = []
    watching = asyncio.create_task(plug.watch(seen.append))
    try:
        yield lambda: seen
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def no_messages() -> socket.socket:
    raise PermissionError("not here")


async def test_messages_about_cards_are_heard_and_no_others() -> None:
    kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard: list[bool] = []
    with kernel, hearing(lambda: heard.append(True), open_socket=lambda: ours):
        for message in (NET, b"libudev\0\xfe\xed", DRM, NET, DRM):
            kernel.send(message)
        await until(lambda: len(heard) == 2, what="both messages are heard")
    assert ours.fileno() == -1  # closed


async def test_the_kernel_itself_is_heard() -> None:
    slots = sorted(Path("/sys/bus/pci/devices").glob("*/uevent"))  # noqa: ASYNC240  # nothing there can block
    if not slots or not os.access(slots[0], os.W_OK):
        pytest.skip("no PCI device may be asked for a message here")
    try:
        open_uevents().close()
    except OSError as error:
        pytest.skip(f"the kernel's messages cannot be had here: {error}")
    heard = asyncio.Event()
    with hearing(heard.set):
        try:
            slots[0].write_text("change")
        except OSError as error:
            pytest.skip(f"this kernel makes no message on demand: {error}")
        await asyncio.wait_for(heard.wait(), 60)


async def test_without_messages_lists_are_compared_by_the_clock(tmp_path: Path) -> None:
    plug = HotPlug(reprobe_s=0.02, read=partial(read_pci_cards, tmp_path), open_socket=no_messages)
    async with comparing(plug) as seen:
        await until(lambda: len(seen()) > 1, what="two comparisons")
        assert not any(seen())
        plug_in(tmp_path, "0000:01:00.0", driver="xe")
        await until(lambda: any(seen()), what="a difference")
        came = next(filter(None, seen()))
        assert came == CardChanges(came=frozenset({"0000:01:00.0"}))
        assert sum(map(bool, seen())) == 1


@pytest.mark.parametrize("how", ["a message", "a sleep"])
async def test_a_message_and_the_end_of_a_sleep_ask_for_a_comparison(tmp_path: Path, how: str) -> None:
    kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    slept_s = [0.0]
    plug = HotPlug(
        reprobe_s=NEVER_S,
        read=partial(read_pci_cards, tmp_path),
        open_socket=lambda: ours,
        sleep_watch=SleepWatch(lambda: slept_s[0]),
    )
    with kernel:
        async with comparing(plug) as seen:
            kernel.send(DRM)
            await until(lambda: len(seen()) > 0, what="the first comparison")
            plug_in(tmp_path, "0000:01:00.0")
            before = len(seen())
            if how == "a message":
                kernel.send(DRM)
            else:
                assert not plug.woke_up()
                slept_s[0] = 8 * 3600.0
                assert plug.woke_up()
            await until(lambda: len(seen()) > before, what="another comparison")
            assert seen()[-1].came


async def test_a_card_that_leaves_the_bus_is_lost_and_tested_when_it_is_back_and_others_are_left_alone(
    engine: Engine, tmp_path: Path
) -> None:
    """Cards without a driver that tells their memory: the bus is all that tells of them."""
    engine.write(backends=["Vulkan", "CPU"], devices=[CPU, gpu(1, "Vulkan"), gpu(2, "Vulkan")])
    for number in (1, 2):
        plug_in(tmp_path, f"0000:0{number}:00.0", driver="xe")
    kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    plug = HotPlug(reprobe_s=NEVER_S, read=partial(read_pci_cards, tmp_path), open_socket=lambda: ours)
    table = Devices(SystemClock(), hot_plug=plug)
    with kernel:
        async with watched(table):
            assert (by_id(table)["GPU-1"].state, by_id(table)["GPU-2"].state) == (OK, OK)
            tests, listings = engine.card_tests(), engine.listings()
            pull_out(tmp_path, "0000:02:00.0")
            kernel.send(DRM)
            await until(lambda: by_id(table)["GPU-2"].state == LOST, deadline_s=20, what="the card is lost")
            assert by_id(table)["GPU-2"].state_reason == "it is no longer on the PCI bus"
            assert by_id(table)["GPU-1"].state == OK
            assert (engine.card_tests(), engine.listings()) == (tests, listings)
            plug_in(tmp_path, "0000:02:00.0", driver="xe")
            kernel.send(DRM)
            await until(lambda: by_id(table)["GPU-2"].state == OK, deadline_s=20, what="the card is back")
            assert by_id(table)["GPU-1"].state == OK
            assert (engine.card_tests(), engine.listings()) == (tests + 1, listings + 1)


async def test_a_message_has_the_drivers_list_their_cards_at_once(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a message of the driver, cards are listed again only after an hour."""
    library = FakeNvml(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", library.environment["LD_LIBRARY_PATH"])
    engine.write(devices=[CPU])
    kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    table = Devices(SystemClock(), hot_plug=HotPlug(reprobe_s=NEVER_S, read=dict, open_socket=lambda: ours))
    with kernel:
        async with watched(table):
            assert by_id(table).keys() == {"cpu"}
            engine.write(devices=[CPU, gpu(1)])
            library.tell(card(1))
            kernel.send(DRM)
            await until(
                lambda: "GPU-1" in by_id(table) and by_id(table)["GPU-1"].state == OK, deadline_s=20, what="a new card"
            )


async def test_an_error_of_a_device_asks_for_a_comparison(engine: Engine, tmp_path: Path) -> None:
    plug = HotPlug(reprobe_s=NEVER_S, read=partial(read_pci_cards, tmp_path), open_socket=no_messages)
    plug_in(tmp_path, "0000:02:00.0")
    engine.write(backends=["Vulkan", "CPU"], devices=[CPU, gpu(1, "Vulkan"), gpu(2, "Vulkan")])
    table = Devices(SystemClock(), hot_plug=plug)
    async with watched(table):
        pull_out(tmp_path, "0000:02:00.0")
        table.see_device_error(["GPU-1"], "vk::DeviceLostError")
        await until(lambda: by_id(table)["GPU-2"].state == LOST, deadline_s=20, what="the other card is missed")
        await until(lambda: by_id(table)["GPU-1"].state == OK, deadline_s=20, what="the blamed one is tested")


async def test_a_card_that_only_its_driver_knows_is_asked_about_once(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user has hidden it, or the engine was built without its backend."""
    library = FakeNvml(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", library.environment["LD_LIBRARY_PATH"])
    library.tell(card(1), card(2))
    engine.write(devices=[CPU, gpu(1)])
    table = Devices(SystemClock(), hot_plug=HotPlug(reprobe_s=NEVER_S, read=dict, open_socket=no_messages))

    def is_told(free_bytes: int) -> bool:
        return by_id(table)["GPU-1"].free_bytes == free_bytes

    async with watched(table):
        for free_bytes in (5 * GIB, 6 * GIB, 7 * GIB):  # each is a word of the drivers about both cards
            library.tell(card(1, free_bytes=free_bytes), card(2))
            await until(partial(is_told, free_bytes), deadline_s=20, what="the figure is there")
        await table.check()
        assert engine.listings() == 1
        library.tell(card(1), card(2), driver="600")  # with another driver the engine may list it
        await until(lambda: engine.listings() == 2, deadline_s=20, what="the engine is asked again")
