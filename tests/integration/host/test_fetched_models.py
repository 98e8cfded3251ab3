"""A node that lacks a model gets it from one that has it: counted from its header, fetched before it loads."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.errors import PunaError, RegistryFailed
from protos import cluster_pb2, host_pb2
from runner.client import RunnerClient
from runner.host.files.blobs import PARTIAL_SUFFIX
from runner.host.registry.partial_file import here_bytes
from tests.cable import cable
from tests.integration.host.node import SMALL, Node, running_node
from tests.integration.runner.processes import collect, greedy
from tools.model_zoo import build

PADDING = 24 * 1024 * 1024
# Eight parts at once, a piece of each that was being written.
SENT_AGAIN_BYTES_MAX = 8 * 1024 * 1024


@pytest.fixture(scope="module")
def padded_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose file is long enough to be cut off in the middle."""
    directory = tmp_path_factory.mktemp("padded")
    path = build("dense", directory)
    with path.open("ab") as file:
        file.write(bytes(PADDING))
    return directory


@pytest.fixture
async def source(tmp_path: Path, padded_models: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "source", padded_models) as node:
        yield node


@pytest.fixture
async def empty(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "empty", tmp_path / "nothing") as node:
        yield node


async def _origin(source: Node, *addresses: str) -> host_pb2.ModelOrigin:
    model = await source.model("dense:latest")
    return host_pb2.ModelOrigin(
        addresses=addresses or (source.address,),
        name=model.name,
        manifest_digest=model.manifest_digest,
        blob_digests=model.blob_digests,
    )


async def _request(source: Node, origin: host_pb2.ModelOrigin) -> host_pb2.StartRequest:
    model = await source.model("dense:latest")
    planned = await source.client.measure(source.address, model_digest=model.digest, layout=SMALL)
    return await source.start_request(origin=origin, planned=planned)


async def test_what_a_model_takes_is_counted_from_its_header_alone(source: Node, empty: Node) -> None:
    digest = (await source.model("dense:latest")).digest
    there = await source.client.measure(source.address, model_digest=digest, layout=SMALL)
    async with cable(source.address) as line:
        origin = await _origin(source, line.address)
        here = await empty.client.measure(empty.address, model_digest=digest, layout=SMALL, origin=origin)
        assert here == there
        assert line.received_bytes < PADDING
    header = empty.home / "cache" / "headers" / f"{digest}.gguf"
    assert header.stat().st_size > PADDING
    assert header.stat().st_blocks * 512 < PADDING // 4
    assert not (empty.models / "blobs").exists() or not list((empty.models / "blobs").glob(f"*{digest}*"))


async def test_a_started_model_is_fetched_first_and_answers_the_same(source: Node, empty: Node) -> None:
    request = await _request(source, await _origin(source))
    async with asyncio.timeout(120):
        records = [record async for record in empty.client.start(empty.address, request)]
    assert records[-1].status.state == cluster_pb2.RUNNER_STATE_READY, records[-1].status
    fractions = [record.status.load_fraction for record in records]
    assert fractions == sorted(fractions)
    fetching = [record.status for record in records if record.status.load_note == "fetching"]
    assert all(status.state == cluster_pb2.RUNNER_STATE_LOADING for status in fetching)
    assert not any(status.load_bytes_done for status in fetching), "files on a disk are not weights in memory"
    assert records[-1].status.load_bytes_done == records[-1].status.load_bytes_total > 0
    there = await source.run(await source.start_request())
    texts = []
    for record in (records[-1], there):
        async with RunnerClient(record.address) as client:
            texts.append((await collect(client, greedy("The weather is cold"))).text)
    assert texts[0] == texts[1]
    fetched = await empty.model("dense:latest")
    assert fetched.digest == (await source.model("dense:latest")).digest
    assert fetched.manifest_digest
    blob = empty.models / "blobs" / f"sha256-{fetched.digest}"
    assert hashlib.sha256(blob.read_bytes()).hexdigest() == fetched.digest


async def test_a_source_that_dies_in_the_middle_is_followed_by_another_one(source: Node, empty: Node) -> None:
    async with cable(source.address) as line:
        request = await _request(source, await _origin(source, line.address, source.address))
        line.cuts_after = PADDING // 2
        async with asyncio.timeout(120):
            records = [record async for record in empty.client.start(empty.address, request)]
        assert line.is_cut
        assert records[-1].status.state == cluster_pb2.RUNNER_STATE_READY, records[-1].status


async def test_without_another_source_the_start_fails_clearly_and_goes_on_later(source: Node, empty: Node) -> None:
    async with cable(source.address) as line:
        request = await _request(source, await _origin(source, line.address))
        line.cuts_after = PADDING // 2
        async with asyncio.timeout(120):
            records = [record async for record in empty.client.start(empty.address, request)]
        assert records[-1].status.state == cluster_pb2.RUNNER_STATE_ERROR
        assert records[-1].status.error.reason == RegistryFailed.reason
        assert line.address in records[-1].status.error.message
    kept = sum(here_bytes(partial) for partial in (empty.models / "blobs").glob(f"*{PARTIAL_SUFFIX}"))
    assert kept > 0
    assert not (empty.models / "manifests").exists()
    async with cable(source.address) as line:
        again = await _request(source, await _origin(source, line.address))
        async with asyncio.timeout(120):
            records = [record async for record in empty.client.start(empty.address, again)]
        assert records[-1].status.state == cluster_pb2.RUNNER_STATE_READY, records[-1].status
        assert line.received_bytes < PADDING - kept + SENT_AGAIN_BYTES_MAX


async def test_a_node_that_has_no_origin_either_says_so(source: Node, empty: Node) -> None:
    origin = await _origin(source, "127.0.0.1:1")
    request = await _request(source, origin)
    async with asyncio.timeout(120):
        records = [record async for record in empty.client.start(empty.address, request)]
    assert records[-1].status.error.reason == RegistryFailed.reason
    with pytest.raises(PunaError, match="could not be fetched"):
        await empty.client.measure(empty.address, model_digest=request.model_digest, layout=SMALL, origin=origin)
