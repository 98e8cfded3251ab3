"""The store of a real node through its own service: blobs in and out, damage, and a store that cannot be written."""

import asyncio
import hashlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from common.errors import InvalidRequest, ModelNotFound, PermissionDenied, RequestTooLarge
from tests.integration.host.store_layout import LaidOut, is_root
from tests.integration.host.store_node import Store, running_store, why_not


async def test_a_blob_goes_in_and_comes_out_from_any_offset(store: Store, laid: LaidOut) -> None:
    content = bytes(range(256)) * 10_000
    digest = await store.put(content, size_bytes=len(content))
    assert await store.size(digest) == len(content)
    assert await store.read(digest) == content
    assert await store.read(digest, offset=1_500_000, max_bytes=1_100_000) == content[1_500_000:2_600_000]
    assert await store.read(digest, offset=len(content)) == b""
    with pytest.raises(InvalidRequest, match="nothing lies at"):
        await store.read(digest, offset=len(content) + 1)
    with pytest.raises(ModelNotFound, match="is not here"):
        await store.read("ab" * 32)
    path = laid.path(digest.removeprefix("sha256:"))
    assert path.stat().st_mode & 0o777 == 0o444
    again = await store.client.put_blob(store.node.address, digest, _never(), size_bytes=5)
    assert (again.existed, again.size_bytes) == (True, len(content))


async def _never() -> AsyncIterator[bytes]:
    pieces: tuple[bytes, ...] = ()
    for piece in pieces:
        yield piece


async def test_bad_blobs_leave_nothing_behind(tmp_path: Path, laid: LaidOut) -> None:
    async with running_store(tmp_path, PUNA_BLOB_MAX_BYTES="1000000") as store:
        good, wrong = hashlib.sha256(b"good").hexdigest(), hashlib.sha256(b"wrong").hexdigest()
        with pytest.raises(InvalidRequest, match=f'expected "sha256:{good}", got "sha256:{wrong}"'):
            await store.put(b"wrong", digest=good)
        for announced, words in ((5, "5 were announced"), (3, "longer than the announced 3")):
            with pytest.raises(InvalidRequest, match=words):
                await store.put(b"good", size_bytes=announced)
        for size in (0, 1_000_001):
            with pytest.raises(RequestTooLarge):
                await store.put(bytes(1_000_001), size_bytes=size)
        for digest in ("x", "../../etc/passwd", "sha256:" + "A" * 64, "sha512:" + "a" * 64):
            with pytest.raises(InvalidRequest, match="digest"):
                await store.put(b"good", digest=digest)
            with pytest.raises(InvalidRequest, match="digest"):
                await store.size(digest)
        assert await store.size(good) is None
        assert laid.blob_names() == set()
        assert await store.put(b"good", size_bytes=4) == f"sha256:{good}"
        assert laid.blob_names() == {f"sha256-{good}"}


async def test_an_upload_that_is_broken_off_leaves_nothing_behind(store: Store, laid: LaidOut) -> None:
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield bytes(1_000_000)
        begun.set()
        await asyncio.Event().wait()

    sending = asyncio.create_task(store.client.put_blob(store.node.address, "ab" * 32, endless()))
    await begun.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await store.put(b"another")  # a round trip, and then some
    async with asyncio.timeout(60):
        while any(name.startswith("upload-") for name in laid.blob_names()):
            await store.size("ab" * 32)
    assert await store.size("ab" * 32) is None


@pytest.fixture
def read_only(tmp_path: Path, laid: LaidOut, content: bytes) -> Iterator[LaidOut]:
    laid.library("given", laid.layer("model", content))
    if is_root():
        mounted = subprocess.run(
            ["mount", "--bind", "-o", "ro", str(laid.directory), str(laid.directory)], check=False, capture_output=True
        )
        if mounted.returncode:
            pytest.skip(f"nothing can be mounted here: {mounted.stderr.decode().strip()}")
        remounted = subprocess.run(
            ["mount", "-o", "remount,bind,ro", str(laid.directory)], check=False, capture_output=True
        )
        try:
            if remounted.returncode:
                pytest.skip(f"nothing can be mounted read-only here: {remounted.stderr.decode().strip()}")
            yield laid
        finally:
            subprocess.run(["umount", "-l", str(laid.directory)], check=True)
        return
    folders = [laid.directory, *(path for path in laid.directory.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    yield laid
    for folder in folders:
        folder.chmod(0o755)


async def test_a_read_only_store_is_served_and_every_write_says_why_not(
    tmp_path: Path, read_only: LaidOut, content: bytes
) -> None:
    async with running_store(tmp_path) as store:
        assert (await store.node.model("given:latest")).error == ""
        assert await store.said("given:latest")
        for attempt in (
            store.put(b"something"),
            store.copy("given", "other"),
            store.delete("given"),
            store.create("other", from_model="given", system="x"),
        ):
            with pytest.raises(PermissionDenied, match=r"the model store .* cannot be written"):
                await attempt
        found = await store.node.inventory(lambda inventory: bool(inventory.nodes))
        assert found.nodes[0].models_free_bytes == 0
        assert found.nodes[0].models_total_bytes > 0
        assert await store.names() == {"given:latest"}
    assert read_only.unchanged()


async def test_a_node_says_how_much_room_its_store_has(store: Store) -> None:
    found = await store.node.inventory(lambda inventory: bool(inventory.nodes))
    (node,) = found.nodes
    assert 0 < node.models_free_bytes < node.models_total_bytes


async def test_damage_between_the_upload_and_the_first_load_is_found(
    store: Store, laid: LaidOut, content: bytes
) -> None:
    digest = await store.put(content)
    await store.create("m", files={"m.gguf": digest})
    request = await store.node.start_request("m:latest")
    path = laid.path(digest.removeprefix("sha256:"))
    spoilt = bytearray(content)
    spoilt[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(spoilt)
    assert await why_not(store.node, request)
    await store.node.host.event("blob.mismatch")
    assert (laid.directory / "quarantine" / path.name).read_bytes() == spoilt
