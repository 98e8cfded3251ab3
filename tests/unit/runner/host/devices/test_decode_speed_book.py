"""Windows of runners as a host evaluates them: neighbours, samples kept, and their build and driver."""

from pathlib import Path

from common.clock import SystemClock
from protos import cluster_pb2
from runner.core.devices.decode_speeds import WINDOWS_MIN
from runner.host.devices.decode_speeds import DecodeSpeeds
from runner.host.devices.device_notes import DeviceNotes

GB = 10**9
READY = cluster_pb2.RUNNER_STATE_NO_SLOTS
BUILD = "build 1"


def card(name: str = "GPU-1", *, copy: int = 400 * GB, driver: str = "nvidia 1") -> cluster_pb2.Device:
    return cluster_pb2.Device(
        id=name, backend="CUDA", description="a card", pool_id=name, speed_bytes_s=copy, driver=driver
    )


CPU = cluster_pb2.Device(id="cpu", backend="CPU", description="a CPU", pool_id="host", speed_bytes_s=20 * GB)


def runner(
    name: str, number: int, bytes_s: float, *, device: str = "GPU-1", size: int = 4 * GB, node: str = ""
) -> cluster_pb2.RunnerRecord:
    window = cluster_pb2.DecodeWindow(number=number, steps=32, span_ms=500, bytes_s=bytes_s)
    window.reads.add(device_id=device, bytes=size)
    record = cluster_pb2.RunnerRecord(
        placement=cluster_pb2.PlacementRef(placement_id=name, incarnation=f"{name}-1"),
        status=cluster_pb2.RunnerStatus(state=READY, slots_busy=1, decode_window=window),
    )
    if device != "cpu":
        record.layout.devices.add(device_id=device, layer_count=33)
    if node:
        record.layout.devices.add(device_id="GPU-9", layer_count=3, node_id=node)
    return record


class MovedClock(SystemClock):
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s

    def wall_unix_s(self) -> float:
        return self.at_s


class Book:
    """A host's, whose time goes on by two seconds with every look."""

    def __init__(self, path: Path | None = None, *, lent: tuple[str, ...] = ()) -> None:
        self.clock = MovedClock()
        self.speeds = DecodeSpeeds(DeviceNotes(path), self.clock, lent=lambda: lent)
        self.clock.at_s += 10.0

    def look(self, *records: cluster_pb2.RunnerRecord, build: str = BUILD) -> None:
        self.clock.at_s += 2.0
        self.speeds.look(records, [card(), card("GPU-2"), CPU], build)

    def shown(self, device: cluster_pb2.Device | None = None, *, build: str = BUILD) -> int:
        (marked,) = self.speeds.mark([device or card()], build)
        return marked.decode_bytes_s


def windows(book: Book, bytes_s: float, *, first: int = 1, device: str = "GPU-1", size: int = 4 * GB) -> None:
    for number in range(first, first + WINDOWS_MIN):
        book.look(runner("a", number, bytes_s, device=device, size=size))


def test_what_a_runner_shows_is_its_devices_speed() -> None:
    book = Book()
    windows(book, 250e9)
    assert book.shown() == 250 * GB
    assert book.shown(card("GPU-2")) == 0


def test_a_window_counts_once() -> None:
    book = Book()
    for _ in range(10):
        book.look(runner("a", 1, 250e9))
    assert book.shown() == 0


def test_layers_in_ram_are_read_by_the_cpu() -> None:
    book = Book()
    windows(book, 12e9, device="cpu", size=GB)
    assert book.shown(CPU) == 12 * GB
    assert book.shown() == 0


def test_a_window_beside_another_runner_does_not_count_against_the_device() -> None:
    book = Book()
    for number in range(1, 20):
        book.look(runner("a", number, 100e9), runner("b", 0, 0.0))
    assert book.shown() == 0
    book.look(runner("a", 20, 100e9))
    assert book.shown() == 0, "it began when the other one was there"


def test_a_device_that_is_lent_is_not_judged() -> None:
    book = Book(lent=("GPU-1",))
    windows(book, 100e9)
    assert book.shown() == 0


def test_what_goes_over_a_network_tells_nothing() -> None:
    book = Book()
    for number in range(1, 20):
        book.look(runner("a", number, 100e9, node="other"))
    assert book.shown() == 0


def test_it_outlives_the_host_and_holds_for_one_build_and_driver(tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    windows(Book(path), 250e9)
    book = Book(path)
    assert book.shown() == 250 * GB
    assert book.shown(card(driver="nvidia 2")) == 0
    assert book.shown(build="build 2") == 0
    other = card()
    other.description = "another card in the same slot"
    assert book.shown(other) == 0


def test_without_a_listing_engine_nothing_is_learned() -> None:
    book = Book()
    for number in range(1, 10):
        book.look(runner("a", number, 250e9), build="")
    assert book.shown(build="") == 0
