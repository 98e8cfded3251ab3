"""Reading a blob before it is loaded: seen from outside, once for all who wait, and given up with the process."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import BadModelFile
from protos import cluster_pb2
from runner.host.files.blobs import BlobStore
from runner.host.files.file_digests import READ_BYTES, FileDigests
from runner.host.files.plain_files import FileStamp
from runner.host.files.verification import Verifier
from runner.host.runners.load_progress import FETCHING, VERIFYING, FetchProgress

CONTENT = bytes(range(256)) * (3 * READ_BYTES // 256) + b"end"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    store = BlobStore(tmp_path / "blobs")
    store.make_directory()
    store.path(DIGEST).write_bytes(CONTENT)
    return store


@pytest.fixture
def verifier(blobs: BlobStore, tmp_path: Path) -> Verifier:
    return Verifier(blobs, FileDigests(tmp_path / "digests.json"), tmp_path / "quarantine", lambda: None)


async def test_who_waits_hears_how_far_it_is_and_a_second_one_joins(verifier: Verifier) -> None:
    first: list[int] = []
    second: list[int] = []
    await asyncio.gather(verifier.verify(DIGEST, first.append), verifier.verify(DIGEST, second.append))
    assert first[-1] == second[-1] == len(CONTENT)
    assert verifier.is_verified(DIGEST)
    later: list[int] = []
    await verifier.verify(DIGEST, later.append)
    assert later == []


async def test_each_megabyte_that_is_read_is_told(blobs: BlobStore, tmp_path: Path) -> None:
    told: list[int] = []
    found = await FileDigests(tmp_path / "d.json").of(FileStamp.of(blobs.path(DIGEST)), told.append)
    assert found == DIGEST
    assert told == [READ_BYTES, 2 * READ_BYTES, 3 * READ_BYTES, len(CONTENT)]


async def test_a_process_that_ends_reads_nothing_to_its_end_and_judges_nothing(
    blobs: BlobStore, tmp_path: Path
) -> None:
    class Ending(FileDigests):
        """The process ends when the first piece is read."""

        end: Callable[[], None]

        async def of(self, stamp: FileStamp, told: Callable[[int], None] = lambda _: None) -> str:
            def ending(done_bytes: int) -> None:
                self.end()
                told(done_bytes)

            return await super().of(stamp, ending)

    digests = Ending(tmp_path / "digests.json")
    verifier = Verifier(blobs, digests, tmp_path / "quarantine", lambda: None)
    digests.end = verifier.stop
    with pytest.raises(BadModelFile, match="the host stops"):
        await verifier.verify(DIGEST)
    assert blobs.has(DIGEST)
    assert not verifier.is_verified(DIGEST)


def test_what_is_done_first_is_a_part_of_the_way_and_named() -> None:
    for what in (FETCHING, VERIFYING):
        progress = FetchProgress(what)
        progress.tell(50, 100)
        status = cluster_pb2.RunnerStatus(state=cluster_pb2.RUNNER_STATE_LAUNCHED)
        progress.show(status)
        assert status.state == cluster_pb2.RUNNER_STATE_LOADING
        assert status.load_note == what.note
        assert status.load_fraction == pytest.approx(what.share / 2)
        progress.is_over = True
        status = cluster_pb2.RunnerStatus(state=cluster_pb2.RUNNER_STATE_LOADING, load_fraction=0.5)
        progress.show(status)
        assert status.load_note == ""
        assert status.load_fraction == pytest.approx(what.share + (1 - what.share) / 2)
