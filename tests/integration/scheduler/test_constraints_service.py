"""Constraints and explanations over gRPC, with a real Redis and a node that keeps its contract."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import pytest

from common.errors import InvalidRequest, ModelNotFound
from protos import scheduler_pb2
from tests.integration.scheduler.node_servicer import GIB, NodeAndDiscovery
from tests.integration.scheduler.surroundings import Running, scheduler
from tests.redis_server import RedisServer
from tests.waiting import Stopwatch, until


def constraints(name: str = "m", **fields: object) -> scheduler_pb2.ModelConstraints:
    return scheduler_pb2.ModelConstraints(model_name=name, constraints=scheduler_pb2.Constraints(**fields))  # type: ignore[arg-type]


async def leads(running: Running) -> None:
    await until(lambda: running.app.core.state.leadership is not None, what="it leads")


@asynccontextmanager
async def successor(
    directory: Path, redis: RedisServer, node: NodeAndDiscovery, **settings: object
) -> AsyncIterator[Running]:
    address = f"unix:{directory}/next.sock"
    async with scheduler(directory, redis.url, node, listen=address, **settings) as running:
        await leads(running)
        yield running


async def test_what_is_set_outlives_the_scheduler_that_was_told(
    running: Running, node: NodeAndDiscovery, redis: RedisServer, directory: Path
) -> None:
    await leads(running)
    set_to = await running.client.put_constraints(constraints(priority=3, keep_alive_ms=-1, max_bytes={"*": GIB}))
    assert set_to.model_name == "m:latest"
    running.stop.set()
    async with successor(directory, redis, node) as other:
        (model,) = await other.client.list_constraints()
        assert model == set_to
        assert await other.client.remove_constraints("m")
        assert not await other.client.remove_constraints("m")
        assert await other.client.list_constraints() == []


async def test_what_makes_no_sense_is_refused_with_its_name(running: Running) -> None:
    await leads(running)
    await running.ensure("m")  # the inventory is there
    for fields, name in (({"nodes": ["nowhere"]}, "nodes"), ({"max_shape": "tall"}, "max_shape")):
        with pytest.raises(InvalidRequest, match=name):
            await running.client.put_constraints(constraints(**fields))
    with pytest.raises(InvalidRequest, match="replicas_max"):
        await running.client.put_constraints(constraints(replicas_min=2, replicas_max=1))
    assert await running.client.list_constraints() == []


async def test_a_kept_model_is_loaded_unasked_and_again_when_its_runner_dies(
    running: Running, node: NodeAndDiscovery
) -> None:
    await leads(running)
    await running.client.put_constraints(constraints(replicas_min=1))
    await until(lambda: len(node.starts) == 1, what="it is loaded")
    await until(lambda: len(running.app.core.state.tracked) == 1, what="it runs")
    node.kill_runner()
    await until(lambda: len(node.starts) == 2, what="it is loaded again", deadline_s=15)


async def test_a_file_is_read_at_the_start_and_cannot_be_changed_by_commands(
    node: NodeAndDiscovery, redis: RedisServer, directory: Path
) -> None:
    path = directory / "placements.toml"
    path.write_text("[models.m]\npreload = true\n")
    async with scheduler(directory, redis.url, node, placements=str(path)) as running:
        await leads(running)
        await until(lambda: len(node.starts) == 1, what="it is preloaded", deadline_s=15)
        with pytest.raises(InvalidRequest, match="PUNA_PLACEMENTS"):
            await running.client.put_constraints(constraints(pinned=True))
        (model,) = await running.client.list_constraints("m")
        assert model.from_file


@pytest.mark.behaviour("B-134")
async def test_explain_answers_within_50_ms_while_a_load_is_stuck(running: Running, node: NodeAndDiscovery) -> None:
    await leads(running)
    node.may_finish.clear()
    await running.client.explain(scheduler_pb2.ExplainRequest(model_name="m"))  # the channel is open
    load = running.client.ensure_model(scheduler_pb2.EnsureModelRequest(model_name="m"))
    while (await anext(load)).WhichOneof("event") != "loading":
        pass
    watch, took_s = Stopwatch(), []
    for _ in range(5):
        begun_s = watch.wall_s
        explained = await running.client.explain(scheduler_pb2.ExplainRequest(model_name="m", last=True))
        took_s.append(watch.wall_s - begun_s)
    watch.assert_within(0.05, "explain", took_s=median(took_s))
    assert explained.outcome == "placed"
    (chosen,) = [one for one in explained.candidates if one.verdict == "chosen"]
    (host,) = chosen.devices
    parts = host.weights_bytes + host.cache_bytes + host.graph_bytes + host.reserve_bytes + host.margin_bytes
    assert host.need_bytes == parts > GIB
    assert 0 < host.need_bytes <= host.available_bytes <= host.free_bytes
    assert host.free_source
    node.may_finish.set()


async def test_of_an_unknown_model_nothing_is_explained(running: Running) -> None:
    await leads(running)
    with pytest.raises(ModelNotFound):
        await running.client.explain(scheduler_pb2.ExplainRequest(model_name="nope"))
