"""Room for what many senders have announced: each has its own, and the disk is never promised twice."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from grpc import aio

from common.errors import DiskFull, InvalidRequest
from common.grpc.server import bind_server
from protos import store_pb2_grpc
from runner.core.store.manifest import Layer
from runner.host.files.blobs import HEADROOM_BYTES, BlobStore
from runner.host.models.model_files import NodeModels
from runner.host.registry.blob_jobs import BlobJobs
from runner.host.store.servicer import ModelStoreServicer
from runner.host.store.store import Store
from runner.host.store.uploads import ROOM_STEP_BYTES, Uploads
from runner.host.store_client import StoreClient
from tests.integration.host.pulling import KIB, PACE, random_bytes
from tests.waiting import until

SIZE = 100 * KIB
QUOTA = 4 * SIZE + SIZE // 2
CONTENTS = [random_bytes(SIZE, seed=seed) for seed in range(10)]


class SmallDisk(BlobStore):
    """Blobs in a real directory that holds QUOTA bytes besides the headroom."""

    quota_bytes = QUOTA

    def room(self) -> tuple[int, int]:
        held = sum(path.stat().st_size for path in self.directory.iterdir()) if self.directory.exists() else 0
        return HEADROOM_BYTES + self.quota_bytes - held, 2 * HEADROOM_BYTES


@pytest.fixture
def blobs(tmp_path: Path) -> SmallDisk:
    return SmallDisk(tmp_path / "blobs")


@pytest.fixture
def uploads(blobs: SmallDisk) -> Uploads:
    return Uploads(blobs, bytes_max=2**40)


class Sender:
    """One upload whose content waits until it may go on."""

    def __init__(self, uploads: Uploads, content: bytes, *, announced: int | None = None, digest: str = "") -> None:
        self.admitted, self.may_send = asyncio.Event(), asyncio.Event()
        self._content = content
        digest = digest or hashlib.sha256(content).hexdigest()
        announced = len(content) if announced is None else announced
        self.task = asyncio.create_task(
            uploads.receive(digest, announced, self._pieces(), on_admitted=self._note_admission)
        )

    async def _note_admission(self) -> None:
        self.admitted.set()

    async def _pieces(self) -> AsyncIterator[bytes]:
        await self.may_send.wait()
        half = len(self._content) // 2
        yield self._content[:half]
        yield self._content[half:]


async def decided(senders: list[Sender]) -> None:
    await until(lambda: all(one.admitted.is_set() or one.task.done() for one in senders), what="each is decided")


async def test_of_many_announced_uploads_only_those_that_fit_together_are_taken(
    uploads: Uploads, blobs: SmallDisk
) -> None:
    senders = [Sender(uploads, content) for content in CONTENTS]
    await decided(senders)
    taken = [one for one in senders if one.admitted.is_set()]
    refused = [one for one in senders if one.task.done()]
    assert (len(taken), len(refused)) == (4, 6)
    assert blobs.reserved_bytes() == 4 * SIZE
    for one in refused:
        with pytest.raises(DiskFull, match=f"{4 * SIZE} are reserved for uploads and downloads in progress"):
            await one.task
    for one in taken:
        one.may_send.set()
    assert await asyncio.gather(*(one.task for one in taken)) == [SIZE] * 4
    assert (len(blobs.digests()), blobs.reserved_bytes(), blobs.free_bytes()) == (4, 0, SIZE // 2)


@pytest.mark.parametrize("end", ["success", "other digest", "shorter", "cancelled", "never admitted"])
async def test_the_room_of_an_upload_is_free_again_however_it_ends(
    uploads: Uploads, blobs: SmallDisk, end: str
) -> None:
    announced = {"shorter": SIZE + 1, "never admitted": QUOTA + 1}.get(end, SIZE)
    digest = "0" * 64 if end == "other digest" else ""
    sender = Sender(uploads, CONTENTS[0], announced=announced, digest=digest)
    await decided([sender])
    assert blobs.reserved_bytes() == (0 if end == "never admitted" else announced)
    sender.may_send.set()
    if end == "cancelled":
        sender.task.cancel()
    errors: dict[str, type[BaseException]] = {"cancelled": asyncio.CancelledError, "never admitted": DiskFull}
    if end == "success":
        await sender.task
    else:
        with pytest.raises(errors.get(end, InvalidRequest)):
            await sender.task
    assert blobs.reserved_bytes() == 0
    assert blobs.free_bytes() == QUOTA - (SIZE if end == "success" else 0)


async def test_an_upload_that_is_cancelled_while_the_disk_is_asked_reserves_nothing(
    uploads: Uploads, blobs: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may_answer = threading.Event(), threading.Event()
    answer = blobs.room

    def slow_room() -> tuple[int, int]:
        asked.set()
        assert may_answer.wait(60)
        return answer()

    monkeypatch.setattr(blobs, "room", slow_room)
    sender = Sender(uploads, CONTENTS[0])
    await asyncio.to_thread(asked.wait, 60)
    sender.task.cancel()
    may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await sender.task
    await asyncio.to_thread(blobs.reservation(lambda: 0).admit)  # after the one in the thread
    assert blobs.reserved_bytes() == 0


async def test_uploads_of_unknown_length_reserve_step_by_step(uploads: Uploads, blobs: SmallDisk) -> None:
    blobs.quota_bytes = ROOM_STEP_BYTES + SIZE + SIZE // 2
    first, second = (Sender(uploads, content, announced=0) for content in CONTENTS[:2])
    await decided([first, second])
    first.may_send.set()
    assert await first.task == SIZE
    with blobs.reservation(lambda: SIZE // 2) as held:
        held.admit()
        second.may_send.set()
        with pytest.raises(DiskFull):
            await second.task
    assert blobs.reserved_bytes() == 0


async def test_downloads_leave_uploads_their_room(uploads: Uploads, blobs: SmallDisk) -> None:
    jobs = BlobJobs(blobs, PACE)
    layer = Layer(media_type="m", digest="1" * 64, size_bytes=QUOTA - SIZE + 1)
    sender = Sender(uploads, CONTENTS[0])
    await decided([sender])
    with pytest.raises(DiskFull):
        await jobs.check_room([layer])
    with pytest.raises(DiskFull):
        await jobs.fetch(layer, [], lambda _: None)
    sender.may_send.set()
    await sender.task


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[SmallDisk, str]]:
    """A store with a small disk behind real gRPC."""
    store = Store(NodeModels(directory, directory / "cache"), blob_bytes_max=2**40, prunes=True)
    blobs = SmallDisk(store.blobs.directory)
    store.blobs, store.uploads = blobs, Uploads(blobs, bytes_max=2**40)

    def register(server: aio.Server) -> None:
        store_pb2_grpc.add_ModelStoreServicer_to_server(ModelStoreServicer(store, lambda *_: None), server)  # type: ignore[arg-type]  # nothing is pulled

    server = bind_server(f"unix:{directory}/store.sock", register=register, services=[])
    await server.start()
    try:
        yield blobs, server.address
    finally:
        await server.stop(0)


async def test_a_client_that_disconnects_leaves_its_room_to_others(tmp_path: Path) -> None:
    async with served(tmp_path) as (blobs, address):
        client, sent = StoreClient(), asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield CONTENTS[0][: SIZE // 2]
            sent.set()
            await asyncio.Event().wait()

        upload = asyncio.create_task(client.put_blob(address, "2" * 64, endless(), size_bytes=3 * SIZE))
        await sent.wait()
        await until(lambda: blobs.reserved_bytes() == 2 * SIZE + SIZE // 2, what="the first half was written")
        other, digest = StoreClient(), hashlib.sha256(CONTENTS[1]).hexdigest()

        async def content() -> AsyncIterator[bytes]:
            yield CONTENTS[1]

        with pytest.raises(DiskFull):
            await other.put_blob(address, "3" * 64, content(), size_bytes=2 * SIZE)
        await client.close()
        upload.cancel()
        await asyncio.gather(upload, return_exceptions=True)
        await until(lambda: blobs.reserved_bytes() == 0, what="the room is free again")
        await other.put_blob(address, digest, content(), size_bytes=SIZE)
        assert blobs.digests() == [digest]
        await other.close()
