"""Files are read ahead by several readers, each on its own, and stop at once."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner import prefetch
from runner.prefetch import CHUNK_BYTES, Prefetch, PrefetchMode, kind_of_device, wanted_files

MOUNTINFO = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
36 21 0:45 / /models rw,relatime shared:20 master:1 - nfs4 server:/models rw,vers=4.2
40 21 0:46 / /remote rw - fuse.sshfs host:/x rw
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    with path.open("wb") as content:
        content.truncate(10 * CHUNK_BYTES + 7)
    return path


@pytest.mark.behaviour("B-82")
def test_every_byte_is_read_once_in_long_ranges_through_descriptors_of_their_own(file: Path) -> None:
    calls: dict[int, list[tuple[int, int]]] = {}
    lock = threading.Lock()

    def read(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        with lock:
            calls.setdefault(threading.get_ident(), []).append((offset, len(buffers[0])))
            assert os.lseek(descriptor, 0, os.SEEK_CUR) == 0, "a shared offset moved"
        return os.preadv(descriptor, buffers, offset)

    reading = Prefetch([file], threads=4, read=read)
    reading.start()
    assert reading.join(20)
    pieces = sorted(piece for ranges in calls.values() for piece in ranges)
    assert [start for start, _ in pieces] == list(range(0, 11 * CHUNK_BYTES, CHUNK_BYTES))
    assert sum(length for _, length in pieces) == file.stat().st_size
    for ranges in calls.values():
        assert ranges == sorted(ranges)


@pytest.mark.behaviour("B-82")
def test_a_stop_is_seen_after_the_chunk_that_is_being_read(file: Path) -> None:
    reading_now, go_on = threading.Event(), threading.Event()
    reads = []

    def read(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        reads.append(offset)
        reading_now.set()
        assert go_on.wait(20)
        return os.preadv(descriptor, buffers, offset)

    reading = Prefetch([file], threads=2, read=read)
    reading.start()
    assert reading_now.wait(20)
    reading.stop()
    go_on.set()
    assert reading.join(1.0)
    assert len(reads) <= 2


def test_what_cannot_be_read_ends_the_reader_and_nothing_else(file: Path) -> None:
    reading = Prefetch([file], threads=2)
    file.unlink()
    reading.start()
    assert reading.join(20)


@pytest.mark.behaviour("B-82")
@pytest.mark.parametrize(
    ("minor", "major", "kind"), [(1, 8, "ext4"), (45, 0, "nfs4"), (46, 0, "fuse.sshfs"), (47, 0, "")]
)
def test_the_kind_of_file_system_is_found_by_device_number(major: int, minor: int, kind: str) -> None:
    assert kind_of_device(MOUNTINFO, major=major, minor=minor) == kind


@pytest.mark.behaviour("B-82")
def test_local_disks_are_left_alone_unless_told(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = file.stat().st_dev
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(prefetch, "MOUNTINFO", table)
    for kind, wanted in (("ext4", []), ("nfs4", [file])):
        table.write_text(f"21 1 {os.major(device)}:{os.minor(device)} / / rw - {kind} source rw\n")
        assert wanted_files(PrefetchMode.AUTO, [file]) == wanted
    assert wanted_files(PrefetchMode.OFF, [file]) == []
    assert wanted_files(PrefetchMode.ON, [file, tmp_path / "none.gguf"]) == [file]
