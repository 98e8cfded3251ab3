"""The file of routes: what a gateway that starts without a scheduler serves."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.replicas import kept_routes
from gateway.replicas.kept_routes import current_routes, keep_routes
from gateway.replicas.routes import RouteCache
from protos import cluster_pb2, scheduler_pb2
from tests.waiting import next_look, until


def table(*names: str) -> scheduler_pb2.RouteTable:
    routes = [scheduler_pb2.ModelRoute(model=cluster_pb2.Model(name=name)) for name in names]
    return scheduler_pb2.RouteTable(routes=routes, removed_node_ids=["gone"])


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("KEEP_EVERY_S", "RETRY_S", "CURRENT_WITHIN_S"):
        monkeypatch.setattr(kept_routes, pause, 0.01)


@asynccontextmanager
async def kept(path: Path) -> AsyncIterator[RouteCache]:
    """Run the watch of a gateway that has just started."""
    cache = RouteCache()
    watch = asyncio.create_task(keep_routes(cache, path))
    await asyncio.sleep(0)
    try:
        yield cache
        assert not watch.done()
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


def names(cache: RouteCache) -> list[str]:
    return [route.model.name for route in cache.all()]


async def write(path: Path, *models: str) -> None:
    """Let an earlier gateway hear of these."""
    async with kept(path) as cache:
        cache.replace_all(table(*models))
        await until(path.exists, what="the file is written")


async def test_a_gateway_starts_with_the_table_of_the_one_before_and_knows_that_no_scheduler_sent_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "routes"
    await write(path, "demo:latest")
    assert path.stat().st_mode & 0o777 == 0o600
    async with kept(path) as cache:
        assert names(cache) == ["demo:latest"]
        assert cache.removed_nodes == {"gone"}
        assert not cache.heard
        cache.replace_all(table("other:latest"))
        assert (names(cache), cache.heard) == (["other:latest"], True)


async def test_a_start_waits_a_moment_for_the_table_of_the_scheduler(tmp_path: Path) -> None:
    """A model of the last second before a crash is missing on disk, and would be missing in a list."""
    path = tmp_path / "routes"
    async with kept(path) as cache:
        await current_routes(cache)  # nothing on disk: there is nothing to be current
    await write(path, "demo:latest")
    async with kept(path) as cache:
        start = asyncio.create_task(current_routes(cache))
        await asyncio.sleep(0)
        assert not start.done()
        cache.replace_all(table("demo:latest", "pulled:latest"))
        await start
        assert len(names(cache)) == 2
    async with kept(path) as cache:
        await current_routes(cache)  # no scheduler answers: those on disk serve
        assert "demo:latest" in names(cache)


async def test_a_table_that_says_the_same_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "routes"
    async with kept(path) as cache:
        cache.replace_all(table("demo:latest"))
        await until(path.exists, what="the file is written")
        written = path.stat().st_ino
        for _ in range(3):
            cache.replace_all(table("demo:latest"))
            await next_look(0.05)
        assert path.stat().st_ino == written
        cache.replace_all(table("demo:latest", "other:latest"))
        await until(lambda: path.stat().st_ino != written, what="the next table is written")


@pytest.mark.parametrize("damage", [b"", bytes(40), b"cut"])
async def test_a_damaged_file_is_set_aside_and_the_gateway_starts_without(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "routes"
    await write(path, "demo:latest")
    path.write_bytes(path.read_bytes()[:-1] if damage == b"cut" else damage)
    with capture_logs() as logs:
        async with kept(path) as cache:
            assert (names(cache), path.exists()) == ([], False)
    ((event, aside),) = [(line["event"], line["set_aside"]) for line in logs]
    assert (event, path.with_name(aside).exists()) == ("routes.corrupt", True)
    assert aside.startswith("routes.corrupt-")


async def test_a_path_that_is_no_file_is_named_once_and_written_when_it_can_be(tmp_path: Path) -> None:
    path = tmp_path / "routes"
    path.mkdir()
    with capture_logs() as logs:
        async with kept(path) as cache:
            for model in ("demo:latest", "other:latest", "third:latest"):
                cache.replace_all(table(model))
                await next_look(0.05)
            assert [line["event"] for line in logs] == ["routes.not_restored", "routes.not_kept"]
            path.rmdir()
            await until(path.exists, what="the file is written")


async def test_a_pipe_in_its_place_does_not_hold_the_start_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "routes")
    async with asyncio.timeout(5), kept(tmp_path / "routes") as cache:
        assert names(cache) == []
