"""Whatever a model is made of, another node counts and loads it as the one that has it does."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protos import cluster_pb2, host_pb2, store_pb2
from runner.host.store_client import StoreClient
from tests.integration.host.node import SMALL, Node, running_node
from tests.integration.host.store_layout import LaidOut
from tests.integration.runner.split import split_gguf
from tests.registry import harmful_proxy, needs_registry, push, running_registry
from tools.model_zoo import build, build_adapter, build_pair

# Each with its draft model, if it has one.
NAMES = {"split:latest": "plain:latest", "tuned:latest": "", "plain-eyes:latest": ""}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store and plain files: in several files, with an adapter, with a projector."""
    directory, made = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("made")
    dense = build("dense", made)
    store = LaidOut(directory=directory)
    parts = split_gguf(dense, made, parts=3)
    content = dense.read_bytes()
    store.library("split", *(store.layer("model", part.read_bytes()) for part in (parts[2], parts[0], parts[1])))
    adapter = store.layer("adapter", build_adapter(dense, made).read_bytes())
    store.library("tuned", store.layer("model", content), adapter)
    model, projector = build_pair("vision", made)
    (directory / "plain.gguf").write_bytes(content)
    (directory / "plain-eyes.gguf").write_bytes(model.read_bytes())
    (directory / "plain-eyes.mmproj.gguf").write_bytes(projector.read_bytes())
    return directory


@pytest.fixture
async def source(tmp_path: Path, models: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "source", models) as node:
        yield node


@pytest.fixture
async def empty(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "empty", tmp_path / "nothing") as node:
        yield node


def _origin(model: cluster_pb2.Model, source: Node) -> host_pb2.ModelOrigin:
    return host_pb2.ModelOrigin(
        addresses=[source.address],
        name=model.name,
        manifest_digest=model.manifest_digest,
        blob_digests=model.blob_digests,
        projector_digest=model.projector_digest,
    )


async def _assert_same(name: str, source: Node, empty: Node, draft: str = "") -> None:
    model = await source.model(name)
    assert not model.error, model
    layout = cluster_pb2.Layout(context_tokens=2048, slots=1, batch_tokens=512, threads=1)
    layout.projector_digest = model.projector_digest
    origin, draft_origin = _origin(model, source), None
    if draft:
        small = await source.model(draft)
        layout.draft_digest, draft_origin = small.digest, _origin(small, source)
    there = await source.client.measure(source.address, model_digest=model.digest, layout=layout)
    here = await empty.client.measure(
        empty.address, model_digest=model.digest, layout=layout, origin=origin, draft_origin=draft_origin
    )
    assert here == there
    assert bool(here.host.projector_bytes) == bool(model.projector_digest or draft)
    request = await source.start_request(name, layout=layout, planned=there, origin=origin, draft_origin=draft_origin)
    async with asyncio.timeout(120):
        records = [record async for record in empty.client.start(empty.address, request)]
    assert records[-1].status.state == cluster_pb2.RUNNER_STATE_READY, records[-1].status
    fractions = [one.status.load_fraction for one in records]
    assert fractions == sorted(fractions)
    assert bool(records[-1].status.memory.host.projector_bytes) == bool(here.host.projector_bytes)
    fetched = await empty.model(name)
    assert (fetched.digest, fetched.projector_digest) == (model.digest, model.projector_digest)
    assert model.manifest_digest in ("", fetched.manifest_digest)
    await empty.stop(request)


async def test_every_kind_of_model_is_counted_and_loaded_as_where_it_comes_from(source: Node, empty: Node) -> None:
    for name, draft in NAMES.items():
        await _assert_same(name, source, empty, draft)


@needs_registry
async def test_a_pull_takes_blobs_from_other_nodes_and_only_the_rest_from_the_registry(
    tmp_path: Path, source: Node, models: Path
) -> None:
    with running_registry(tmp_path / "registry") as registry:
        push(registry, "library/plain", (models / "plain.gguf").read_bytes())
        async with harmful_proxy(registry.host) as proxy:
            proxy.spares_bytes = 0
            allowed = {"PUNA_REGISTRIES": f"http://{proxy.address}"}
            async with running_node(tmp_path / "pulling", tmp_path / "pulled", **allowed) as node:
                stores = StoreClient()
                request = store_pb2.PullRequest(
                    name=f"{proxy.address}/library/plain",
                    insecure=True,
                    sources=["127.0.0.1:1", source.address],
                )
                lines = [line async for line in stores.pull(node.address, request)]
                assert lines[-1].status == "success"
                plain = await source.model("plain:latest")
                assert (await node.model(f"{proxy.address}/library/plain:latest")).digest == plain.digest
                assert all(plain.digest not in path for method, path, _ in proxy.requests if method == "GET")
                assert proxy.sent_bytes < 4096
                await stores.close()


async def test_a_stored_model_that_sees_comes_with_its_projector(tmp_path: Path, empty: Node) -> None:
    store = LaidOut(directory=tmp_path / "seeing")
    model, projector = build_pair("vision", tmp_path)
    store.library("eyes", store.layer("model", model.read_bytes()), store.layer("projector", projector.read_bytes()))
    async with running_node(tmp_path / "eyes", store.directory) as source:
        await _assert_same("eyes:latest", source, empty)


async def test_a_name_that_is_taken_here_is_not_overwritten(tmp_path: Path, source: Node) -> None:
    mine = tmp_path / "mine"
    store = LaidOut(directory=mine)
    other = build("recurrent", tmp_path)
    store.library("plain", store.layer("model", other.read_bytes()))
    async with running_node(tmp_path / "taken", mine) as node:
        before = await node.model("plain:latest")
        model = await source.model("plain:latest")
        request = await source.start_request("plain:latest", layout=SMALL, origin=_origin(model, source))
        async with asyncio.timeout(120):
            records = [record async for record in node.client.start(node.address, request)]
        assert records[-1].status.state == cluster_pb2.RUNNER_STATE_READY, records[-1].status
        assert (await node.model(f"fetched-{model.digest[:12]}:latest")).digest == model.digest
        assert (await node.model("plain:latest")).digest == before.digest != model.digest
