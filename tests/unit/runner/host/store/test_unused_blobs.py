"""Blobs that nobody came for: gone after a day, and not while somebody might need them."""

import hashlib
import os
import time
from pathlib import Path

import orjson
import pytest

from runner.core.store.names import StoreName
from runner.host.models.model_files import NodeModels
from runner.host.store.store import UNUSED_S, Store

HOUR_S = 3600.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return opened(tmp_path)


def opened(tmp_path: Path, *, prunes: bool = True) -> Store:
    return Store(NodeModels(tmp_path / "models", tmp_path / "cache"), blob_bytes_max=10**6, prunes=prunes)


def put(store: Store, content: bytes) -> str:
    """As an upload that is complete."""
    digest = hashlib.sha256(content).hexdigest()
    store.blobs.make_directory()
    partial = store.blobs.partial_path(digest)
    partial.write_bytes(content)
    store.blobs.commit(digest, partial)
    return digest


def name_for(store: Store, *digests: str) -> StoreName:
    layers = [
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{one}", "size": 1} for one in digests
    ]
    config = put(store, b"{}")
    content = orjson.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "digest": f"sha256:{config}",
                "size": 2,
            },
            "layers": layers,
        }
    )
    name = StoreName.parse("m")
    store.manifests.write(name, content)
    return name


async def test_what_nothing_names_goes_after_a_day_and_not_before(store: Store) -> None:
    named, unused = put(store, b"named"), put(store, b"nobody came")
    name_for(store, named)
    now_s = time.time()
    assert await store.drop_unused(now_s + UNUSED_S - HOUR_S) == 0
    assert store.blobs.has(unused)
    assert await store.drop_unused(now_s + UNUSED_S + HOUR_S) == len(b"nobody came")
    assert not store.blobs.has(unused)
    assert store.blobs.has(named)
    assert sorted(path.name for path in store.blobs.directory.iterdir()) == [
        f"sha256-{one}" for one in sorted(store.blobs.digests())
    ]


async def test_a_copy_that_keeps_the_time_of_its_original_is_as_new_as_it_looks_here(store: Store) -> None:
    digest = put(store, b"from a backup, its manifest is on its way")
    os.utime(store.blobs.path(digest), (0, 0))
    assert await store.drop_unused(time.time() + HOUR_S) == 0
    assert store.blobs.has(digest)


async def test_nothing_goes_while_somebody_makes_or_fetches_a_model(store: Store) -> None:
    digest, later_s = put(store, b"first of two"), time.time() + 2 * UNUSED_S
    with store.pinned(["0" * 64]):
        assert await store.drop_unused(later_s) == 0
    assert store.blobs.has(digest)
    assert await store.drop_unused(later_s) > 0


async def test_nothing_goes_while_a_manifest_cannot_be_read(store: Store) -> None:
    digest = put(store, b"perhaps of that one")
    store.manifests.path(name_for(store, digest)).write_bytes(b"{")
    assert await store.drop_unused(time.time() + 2 * UNUSED_S) == 0
    assert store.blobs.has(digest)


async def test_who_keeps_unused_blobs_keeps_these(tmp_path: Path) -> None:
    store = opened(tmp_path, prunes=False)
    digest = put(store, b"kept")
    assert await store.drop_unused(time.time() + 2 * UNUSED_S) == 0
    assert store.blobs.has(digest)


async def test_files_of_others_are_left_alone(store: Store) -> None:
    put(store, b"x")
    beside = store.blobs.directory / "sha256-abc-partial-0"
    beside.write_bytes(b"of another program")
    await store.drop_unused(time.time() + 2 * UNUSED_S)
    assert beside.exists()
