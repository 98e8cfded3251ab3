"""Pulls from a real registry: what arrives, what is asked for, and what is left when something goes wrong."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from common.errors import (
    BadModelFile,
    DigestMismatch,
    DiskFull,
    InvalidRequest,
    ModelNotFound,
    PermissionDenied,
    RegistryFailed,
)
from protos import store_pb2
from runner.core.store.names import StoreName
from tests.integration.host.pulling import KIB, PACE, Store, open_store, random_bytes
from tests.registry import HarmfulProxy, Pushed, RunningRegistry, harmful_proxy, needs_registry, push, running_registry
from tests.waiting import until

pytestmark = needs_registry
SIZE = 1000 * KIB + 17


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def pushed(registry: RunningRegistry) -> Pushed:
    return push(registry, "library/tiny", random_bytes(SIZE))


@pytest.fixture
async def proxy(registry: RunningRegistry) -> AsyncIterator[HarmfulProxy]:
    async with harmful_proxy(registry.host) as before:
        yield before


def _lines(progress: list[store_pb2.StoreProgress]) -> list[str]:
    """Each status once, in order."""
    return list(dict.fromkeys(line.status for line in progress))


def _through(proxy: HarmfulProxy) -> str:
    return f"{proxy.address}/library/tiny:latest"


async def _assert_whole(store: Store, pushed: Pushed, name: str) -> None:
    assert store.blobs.path(pushed.digest).read_bytes() == pushed.weights
    assert store.manifests.read(StoreName.parse(name)) == pushed.manifest
    assert store.partials() == []


async def test_a_pull_brings_manifest_and_blobs_and_says_what_ollama_says(
    tmp_path: Path, registry: RunningRegistry, pushed: Pushed
) -> None:
    async with open_store(tmp_path, f"http://{registry.host}") as store:
        progress = await store.pull(pushed.name)
        statuses = _lines(progress)
        assert statuses[:2] == ["pulling manifest", f"pulling {pushed.digest[:12]}"]
        assert statuses[-3:] == ["verifying sha256 digest", "writing manifest", "success"]
        assert len(statuses) == 7  # weights, parameters and config
        weights = [line for line in progress if line.digest == f"sha256:{pushed.digest}"]
        assert weights[-1].completed_bytes == weights[-1].total_bytes == SIZE
        assert [line.completed_bytes for line in weights] == sorted(line.completed_bytes for line in weights)
        await _assert_whole(store, pushed, pushed.name)
        assert store.inspected == [pushed.digest]
        assert store.blobs.path(pushed.digest).stat().st_mode & 0o777 == 0o444


def _metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"puna_host_{name}", labels) or 0.0


async def test_what_comes_and_what_does_not_is_counted(
    tmp_path: Path, registry: RunningRegistry, pushed: Pushed
) -> None:
    async with open_store(tmp_path, f"http://{registry.host}") as store:
        before = _metric("fetched_bytes_total", source="registry")
        await store.pull(pushed.name)
        assert _metric("fetched_bytes_total", source="registry") - before >= SIZE
        assert (_metric("fetches"), _metric("pulls")) == (0, 0)


async def test_a_large_blob_comes_in_parallel_parts(tmp_path: Path, proxy: HarmfulProxy, pushed: Pushed) -> None:
    async with open_store(tmp_path, f"http://{proxy.address}") as store:
        await store.pull(_through(proxy))
        ranges = sorted(asked for method, path, asked in proxy.requests if asked)
        assert len(ranges) == 4
        assert "bytes=0-256004" in ranges
        assert proxy.sent_bytes == SIZE
        await _assert_whole(store, pushed, _through(proxy))


async def test_blobs_that_are_here_are_not_asked_for_again(tmp_path: Path, proxy: HarmfulProxy, pushed: Pushed) -> None:
    async with open_store(tmp_path, f"http://{proxy.address}") as store:
        await store.pull(_through(proxy))
        before = len(proxy.requests)
        progress = await store.pull(_through(proxy))
        assert [path.split("/")[4] for _, path, _ in proxy.requests[before:]] == ["manifests"]
        assert _lines(progress)[-1] == "success"
        assert "removing unused layers" not in _lines(progress)


@pytest.mark.parametrize("cut_bytes", [1, 20 * KIB, 200 * KIB])
async def test_a_cut_connection_goes_on_where_it_stood(
    tmp_path: Path, proxy: HarmfulProxy, pushed: Pushed, cut_bytes: int
) -> None:
    proxy.cuts_after, proxy.cuts_left = cut_bytes, 12
    async with open_store(tmp_path, f"http://{proxy.address}") as store:
        await store.pull(_through(proxy))
        await _assert_whole(store, pushed, _through(proxy))
        assert proxy.cuts_left == 0 or cut_bytes == 200 * KIB
        assert proxy.sent_bytes < SIZE + 12 * 64 * KIB  # what was on its way when the connection broke


async def test_a_registry_that_sends_nothing_is_given_up_and_what_came_stays(
    tmp_path: Path, proxy: HarmfulProxy, pushed: Pushed
) -> None:
    proxy.holds_after = SIZE // 2
    async with open_store(tmp_path, f"http://{proxy.address}", pace=replace(PACE, stall_s=0.2)) as store:
        with pytest.raises(RegistryFailed, match="sent nothing for"):
            await store.pull(_through(proxy))
        assert len(store.partials()) == 2
        assert store.manifests.names() == []


async def test_a_stalled_part_starts_again_where_it_stood(tmp_path: Path, proxy: HarmfulProxy, pushed: Pushed) -> None:
    proxy.stalls_left = 3
    async with open_store(tmp_path, f"http://{proxy.address}", pace=replace(PACE, stall_s=2.0)) as store:
        await store.pull(_through(proxy))
        await _assert_whole(store, pushed, _through(proxy))
        assert proxy.stalls_left == 0
        assert proxy.sent_bytes == SIZE  # what came before the stall was kept


async def test_a_server_without_ranges_sends_the_blob_anew_in_one_piece(
    tmp_path: Path, proxy: HarmfulProxy, pushed: Pushed
) -> None:
    proxy.drops_ranges = True
    async with open_store(tmp_path, f"http://{proxy.address}") as store:
        await store.pull(_through(proxy))
        await _assert_whole(store, pushed, _through(proxy))
        asked = [asked for method, path, asked in proxy.requests if method == "GET" and pushed.digest in path]
        assert asked[-1] == ""


async def test_a_server_without_ranges_that_breaks_off_is_asked_from_the_first_byte(
    tmp_path: Path, proxy: HarmfulProxy, pushed: Pushed
) -> None:
    async with open_store(
        tmp_path,
        f"http://{proxy.address}",
        pace=replace(PACE, sizes=replace(PACE.sizes, min_bytes=SIZE, max_bytes=SIZE)),
    ) as store:
        proxy.drops_ranges, proxy.cuts_after, proxy.cuts_left = True, 300 * KIB, 1
        await store.pull(_through(proxy))
        await _assert_whole(store, pushed, _through(proxy))


async def test_wrong_bytes_are_deleted_and_both_digests_named(
    tmp_path: Path, proxy: HarmfulProxy, pushed: Pushed
) -> None:
    proxy.flips_byte = 1000
    async with open_store(tmp_path, f"http://{proxy.address}") as store:
        with pytest.raises(DigestMismatch, match=f"expected 'sha256:{pushed.digest}', got 'sha256:"):
            await store.pull(_through(proxy))
        assert not store.blobs.has(pushed.digest)
        assert store.partials() == []
        assert store.manifests.names() == []
        proxy.flips_byte = -1
        await store.pull(_through(proxy))
        await _assert_whole(store, pushed, _through(proxy))


async def test_no_registry_off_the_list_is_asked(tmp_path: Path, proxy: HarmfulProxy) -> None:
    async with open_store(tmp_path, "hf.co") as store:
        with pytest.raises(PermissionDenied, match="not on the list"):
            await store.pull(_through(proxy))
        assert proxy.requests == []


async def test_http_without_tls_needs_the_operator_and_the_request(
    tmp_path: Path, registry: RunningRegistry, pushed: Pushed
) -> None:
    async with open_store(tmp_path / "a", registry.host) as store:
        with pytest.raises(PermissionDenied, match="TLS only"):
            await store.pull(pushed.name, insecure=True)
    async with open_store(tmp_path / "b", f"http://{registry.host}") as store:
        with pytest.raises(RegistryFailed, match="insecure"):
            await store.pull(pushed.name, insecure=False)


async def test_an_unknown_model_is_not_found(tmp_path: Path, registry: RunningRegistry, pushed: Pushed) -> None:
    async with open_store(tmp_path, f"http://{registry.host}") as store:
        with pytest.raises(ModelNotFound):
            await store.pull(f"{registry.host}/library/nobody:latest")
        with pytest.raises(InvalidRequest):
            await store.pull("a/b/c/d/e")


async def test_what_is_no_gguf_never_gets_a_name(tmp_path: Path, registry: RunningRegistry, pushed: Pushed) -> None:
    async with open_store(tmp_path, f"http://{registry.host}") as store:
        store.refusal = BadModelFile("not a GGUF file")
        with pytest.raises(InvalidRequest, match="not a GGUF file"):
            await store.pull(pushed.name)
        assert store.manifests.names() == []


async def test_no_room_is_said_before_anything_is_fetched(
    tmp_path: Path, proxy: HarmfulProxy, pushed: Pushed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(tmp_path, f"http://{proxy.address}") as store:
        monkeypatch.setattr(store.blobs, "free_bytes", lambda: SIZE - 1)
        with pytest.raises(DiskFull):
            await store.pull(_through(proxy))
        assert proxy.sent_bytes == 0


async def test_two_listeners_share_one_job(tmp_path: Path, proxy: HarmfulProxy, pushed: Pushed) -> None:
    proxy.holds_after = SIZE // 2
    async with open_store(tmp_path, f"http://{proxy.address}") as store:
        first = asyncio.create_task(store.pull(_through(proxy)))
        await until(lambda: proxy.sent_bytes >= proxy.holds_after, what="half of it came")
        second = asyncio.create_task(store.pull(_through(proxy)))
        proxy.released.set()
        for progress in await asyncio.gather(first, second):
            assert _lines(progress)[0] == "pulling manifest"
            assert _lines(progress)[-1] == "success"
        assert proxy.sent_bytes == SIZE


async def test_two_names_with_the_same_weights_fetch_them_once(
    tmp_path: Path, registry: RunningRegistry, proxy: HarmfulProxy, pushed: Pushed
) -> None:
    push(registry, "library/twin", pushed.weights)
    proxy.holds_after = SIZE // 2
    async with open_store(tmp_path, f"http://{proxy.address}") as store:
        names = [f"{proxy.address}/library/{model}:latest" for model in ("tiny", "twin")]
        pulls = [asyncio.create_task(store.pull(name)) for name in names]
        await until(lambda: proxy.sent_bytes >= proxy.holds_after, what="half of it came")
        await until(lambda: sum("manifests" in path for _, path, _ in proxy.requests) == 2, what="both have begun")
        proxy.released.set()
        await asyncio.gather(*pulls)
        assert proxy.sent_bytes == SIZE
        assert len(store.manifests.names()) == 2


async def test_a_pull_without_listeners_stops_and_goes_on_where_it_stood(
    tmp_path: Path, proxy: HarmfulProxy, pushed: Pushed
) -> None:
    proxy.holds_after = SIZE // 2
    async with open_store(tmp_path, f"http://{proxy.address}", linger_s=1.0) as store:
        listener = asyncio.create_task(store.pull(_through(proxy)))
        await until(lambda: proxy.sent_bytes >= proxy.holds_after, what="half of it came")
        listener.cancel()
        await until(lambda: pushed.digest not in store.blob_jobs._jobs, what="the job has stopped")
        assert len(store.partials()) == 2  # the file, and what is known of it
        assert store.manifests.names() == []
        proxy.holds_after = 0
        proxy.released.set()
        before = proxy.sent_bytes
        await store.pull(_through(proxy))
        await _assert_whole(store, pushed, _through(proxy))
        assert proxy.sent_bytes - before < SIZE * 3 // 4


async def test_a_listener_who_comes_back_in_time_keeps_the_job(
    tmp_path: Path, proxy: HarmfulProxy, pushed: Pushed
) -> None:
    proxy.holds_after = SIZE // 2
    async with open_store(tmp_path, f"http://{proxy.address}", linger_s=60.0) as store:
        listener = asyncio.create_task(store.pull(_through(proxy)))
        await until(lambda: proxy.sent_bytes >= proxy.holds_after, what="half of it came")
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)
        assert pushed.digest in store.blob_jobs._jobs
        proxy.released.set()
        await store.pull(_through(proxy))
        assert proxy.sent_bytes == SIZE
