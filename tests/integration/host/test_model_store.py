"""The store of a real node through its own service: blobs in and out, models made, named again and deleted."""

import asyncio
import contextlib
import hashlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from common.errors import InvalidRequest, ModelNotFound, PermissionDenied, RequestTooLarge
from common.model_details import KeptDetails
from discovery.client import watch_inventory
from protos import cluster_pb2, store_pb2
from runner.client import RunnerClient
from runner.host.store_client import StoreClient
from tests.integration.host.node import Node, running_node
from tests.integration.host.store_layout import LaidOut, is_root
from tests.integration.runner.processes import collect, greedy
from tests.integration.runner.split import split_gguf
from tools.model_zoo import build, build_adapter, build_pair

PROMPT = "The weather is cold"
BAD_NAMES = ("../x", "a/../b", "..", "a%2fb", "C:\\x", "//a", "\u0430b", "a\0b", "x" * 10_240, "", ".x", "a/b/c/d")


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("dense", tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="session")
def content(dense: Path) -> bytes:
    return dense.read_bytes()


@pytest.fixture
def laid(tmp_path: Path) -> LaidOut:
    store = LaidOut(directory=tmp_path / "models")
    store.directory.mkdir()
    return store


class Store:
    """A node's store as a gateway speaks to it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.client = StoreClient()

    async def create(self, name: str, **fields: Any) -> list[str]:
        request = store_pb2.CreateRequest(name=name, **fields)
        return [progress.status async for progress in self.client.create(self.node.address, request)]

    async def put(self, content: bytes, *, digest: str = "", size_bytes: int = 0, piece: int = 300_000) -> str:
        digest = digest or hashlib.sha256(content).hexdigest()

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(content), piece):
                yield content[start : start + piece]

        await self.client.put_blob(self.node.address, digest, pieces(), size_bytes=size_bytes)
        return f"sha256:{digest}"

    async def read(self, digest: str, **where: int) -> bytes:
        return b"".join([chunk.data async for chunk in self.client.read_blob(self.node.address, digest, **where)])

    async def size(self, digest: str) -> int | None:
        return await self.client.stat_blob(self.node.address, digest)

    async def delete(self, name: str) -> int:
        return await self.client.delete(self.node.address, name)

    async def copy(self, source: str, destination: str) -> None:
        await self.client.copy(self.node.address, source=source, destination=destination)

    async def model(self, name: str) -> cluster_pb2.Model:
        """With its long texts, which a stream carries once."""
        await self.node.model(name)
        details = KeptDetails()
        async with contextlib.aclosing(watch_inventory(self.node.discovery_address)) as stream:
            inventory = await anext(stream)
        details.take(model for node in inventory.nodes for model in node.models)
        (model,) = (model for node in inventory.nodes for model in node.models if model.name == name)
        details.complete(model)
        return model

    async def names(self) -> set[str]:
        found = await self.node.inventory(lambda inventory: bool(inventory.nodes))
        return {model.name for node in found.nodes for model in node.models}

    async def without(self, name: str) -> None:
        await self.node.inventory(
            lambda inventory: all(m.name != name for node in inventory.nodes for m in node.models)
        )

    async def said(self, name: str) -> list[int]:
        request = await self.node.start_request(name)
        record = await self.node.run(request)
        assert record.status.state == cluster_pb2.RUNNER_STATE_READY, record.status.error
        async with RunnerClient(record.address) as client:
            answer = await collect(client, greedy(PROMPT))
        await self.node.stop(request)
        return [token.id for token in answer.tokens]


@asynccontextmanager
async def running_store(tmp_path: Path, **environment: str) -> AsyncIterator[Store]:
    async with running_node(tmp_path, tmp_path / "models", **environment) as node:
        store = Store(node)
        try:
            yield store
        finally:
            await store.client.close()


@pytest.fixture
async def store(tmp_path: Path, laid: LaidOut) -> AsyncIterator[Store]:
    async with running_store(tmp_path) as running:
        yield running


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
    async with asyncio.timeout(10):
        while any(name.startswith("upload-") for name in laid.blob_names()):
            await store.size("ab" * 32)
    assert await store.size("ab" * 32) is None


async def test_names_that_lead_out_of_the_store_are_refused_everywhere(store: Store, laid: LaidOut) -> None:
    for name in BAD_NAMES:
        for attempt in (
            store.create(name, from_model="dense"),
            store.copy("dense", name),
            store.copy(name, "x"),
            store.delete(name),
            store.client.read_manifest(store.node.address, name),
            *((store.create("x", from_model=name),) if name else ()),
        ):
            with pytest.raises(InvalidRequest, match="invalid model name") as caught:
                await attempt
            assert len(caught.value.message) < 300
    assert not (laid.directory / "manifests").exists()


async def test_a_model_is_made_of_files_with_everything_that_it_should_say(
    store: Store, laid: LaidOut, content: bytes
) -> None:
    digest = await store.put(content)
    statuses = await store.create(
        "Mine:v1",
        files={"dense.gguf": digest},
        template="{{ if .System }}{{ .System }}{{ end }}{{ .Prompt }}",
        system="Be brief.",
        licenses=["MIT", "Apache"],
        parameters_json='{"temperature": 0.5, "stop": ["<a>", "<b>"], "num_ctx": 256}',
        messages_json='[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]',
        renderer="qwen3",
        parser="qwen3",
    )
    assert statuses[0] == "gathering model components"
    assert statuses[1] == "parsing GGUF"
    assert statuses[-2:] == ["writing manifest", "success"]
    assert f"using existing layer {digest}" in statuses
    assert sum(status.startswith("creating new layer sha256:") for status in statuses) == 6
    model = await store.model("Mine:v1")
    assert model.error == ""
    assert f"sha256:{model.digest}" == digest
    assert (model.system, model.parser, list(model.licenses)) == ("Be brief.", "qwen3", ["MIT", "Apache"])
    assert orjson.loads(model.parameters_json) == {"temperature": 0.5, "stop": ["<a>", "<b>"], "num_ctx": 256}
    assert len(orjson.loads(model.messages_json)) == 2
    manifest = await store.client.read_manifest(store.node.address, "mine:V1")  # in other letters
    assert hashlib.sha256(manifest).hexdigest() == model.manifest_digest
    path = laid.directory / "manifests" / "registry.ollama.ai" / "library" / "Mine" / "v1"
    assert path.read_bytes() == manifest
    config = orjson.loads(await store.read(orjson.loads(manifest)["config"]["digest"]))
    assert config["model_format"] == "gguf"
    assert (config["model_family"], config["renderer"]) == ("llama", "qwen3")
    assert config["model_type"].endswith(("K", "M"))


async def test_a_model_is_made_of_another_one_and_keeps_what_is_not_said_anew(store: Store, content: bytes) -> None:
    digest = await store.put(content)
    await store.create(
        "base",
        files={"m.gguf": digest},
        system="Base.",
        template="{{ .Prompt }}",
        parameters_json='{"top_k": 5, "seed": 1}',
        licenses=["MIT"],
        parser="p",
    )
    await store.create("child", from_model="base", system="Child.", parameters_json='{"seed": 2}')
    child, base = await store.model("child:latest"), await store.model("base:latest")
    assert (child.system, child.template, list(child.licenses), child.parser) == (
        *("Child.", "{{ .Prompt }}"),
        ["MIT"],
        "p",
    )
    assert orjson.loads(child.parameters_json) == {"top_k": 5, "seed": 2}
    assert (child.digest, child.parent_model) == (base.digest, "base:latest")
    await store.create("bare", from_model="child", system="", template="")
    bare = await store.model("bare:latest")
    assert (bare.system, bare.template) == ("", "")


async def test_split_files_projectors_and_adapters_become_layers_of_their_kind(
    tmp_path: Path, store: Store, dense: Path, content: bytes
) -> None:
    parts = split_gguf(dense, tmp_path, parts=3)
    adapter = build_adapter(dense, tmp_path)
    files = {part.name: await store.put(part.read_bytes()) for part in reversed(parts)}
    whole = await store.put(content)
    await store.create("whole", files={"m.gguf": whole})
    await store.create("split", files=files)
    tuned = {"files": {"m.gguf": whole}, "adapters": {"a.gguf": await store.put(adapter.read_bytes())}}
    await store.create("tuned", **tuned)
    await store.create("zero", **tuned, adapter_scales={"a.gguf": 0.0})
    assert (await store.node.model("split:latest")).size_bytes == sum(part.stat().st_size for part in parts)
    expected = await store.said("whole:latest")
    assert await store.said("split:latest") == expected
    assert await store.said("zero:latest") == expected
    assert await store.said("tuned:latest") != expected
    pair = build_pair("vision", tmp_path)
    eyes = {path.name: await store.put(path.read_bytes()) for path in pair}
    await store.create("eyes", files=eyes)
    row = await store.node.model("eyes:latest")
    assert "vision" in row.description.capabilities
    assert eyes[pair[1].name] == f"sha256:{row.projector_digest}"


async def test_what_makes_no_model_is_refused_and_names_nothing(
    tmp_path: Path, store: Store, dense: Path, content: bytes
) -> None:
    digest = await store.put(content)
    parts = [await store.put(part.read_bytes()) for part in split_gguf(dense, tmp_path, parts=2)]
    adapter = await store.put(build_adapter(dense, tmp_path).read_bytes())
    cut = await store.put(content[:-1])
    notes = await store.put(b"these are notes")
    one = {"m.gguf": digest}
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "neither 'from' or 'files' was specified"),
        ({"files": one, "from_model": "x"}, "only one of"),
        ({"files": {"m.gguf": notes}}, "not a GGUF"),
        ({"files": {"m.gguf": cut}}, "truncated"),
        ({"files": {"m.gguf": parts[0]}}, "one of 2 files"),
        ({"files": {"m.gguf": digest, "n.gguf": parts[0]}}, "whole model"),
        ({"files": {"m.gguf": adapter}}, "is an adapter"),
        ({"files": one, "adapters": {"a.gguf": digest}}, "is no adapter"),
        ({"files": one, "adapter_scales": {"a.gguf": 1.0}}, "no adapter"),
        ({"files": {"m.safetensors": digest}}, "only GGUF"),
        ({"files": {"../m.gguf": digest}}, "relative path"),
        ({"files": {"/m.gguf": digest}}, "relative path"),
        ({"files": {"m.gguf": "sha256:abc"}}, "digest"),
        ({"files": one, "template": "{{ if .System }}"}, "template error"),
        ({"files": one, "parameters_json": "[1]"}, "no JSON object"),
        ({"files": one, "parameters_json": '{"stop": [1]}'}, "parameter 'stop'"),
        ({"files": one, "parameters_json": '{"top_k": null}'}, "parameter 'top_k'"),
        ({"files": one, "messages_json": "{}"}, "no JSON list"),
        ({"files": one, "messages_json": '[{"role": "user"}]'}, "a role and a content"),
        ({"files": one, "messages_json": '[{"role": "tool", "content": "x"}]'}, "invalid role"),
        ({"files": one, "system": "x" * 1_100_000}, "more than"),
        ({"files": one, "parser": "a b"}, "one word"),
    ]
    for fields, words in cases:
        with pytest.raises(InvalidRequest, match=words):
            await store.create("bad", **fields)
    for fields in ({"from_model": "nobody"}, {"files": {"m.gguf": "cd" * 32}}):
        with pytest.raises(ModelNotFound):
            await store.create("bad", **fields)
    assert "bad:latest" not in await store.names()


async def test_deleting_names_drops_only_what_no_other_name_needs(store: Store, laid: LaidOut, content: bytes) -> None:
    digest = await store.put(content)
    await store.create("one", files={"m.gguf": digest}, system="One.")
    await store.copy("one", "me/copy:v2")
    await store.create("two", from_model="one", system="Two.")
    before = laid.blob_names()
    assert await store.delete("ONE") == 0  # the copy needs all of it
    assert laid.blob_names() == before
    await store.without("one:latest")
    freed = await store.delete("me/copy:v2")
    assert 0 < freed < 1000  # a system text and its config
    assert await store.size(digest) == len(content)
    assert (await store.node.model("two:latest")).system == "Two."
    assert await store.delete("two") > len(content)
    assert laid.blob_names() == set()
    assert not list((laid.directory / "manifests").rglob("*"))
    for missing in (store.delete("two"), store.copy("two", "three")):
        with pytest.raises(ModelNotFound, match="not found"):
            await missing


async def test_making_a_name_anew_drops_what_its_former_content_needed(
    store: Store, laid: LaidOut, content: bytes
) -> None:
    digest = await store.put(content)
    await store.create("m", files={"m.gguf": digest}, system="Former text.")
    former = f"sha256-{hashlib.sha256(b'Former text.').hexdigest()}"
    assert former in laid.blob_names()
    await store.create("m", from_model="m", system="Newer text.")
    assert former not in laid.blob_names()
    assert (await store.node.model("m:latest")).digest == digest.removeprefix("sha256:")


async def test_nothing_is_dropped_while_a_manifest_cannot_be_read(store: Store, laid: LaidOut, content: bytes) -> None:
    digest = await store.put(content)
    library = laid.directory / "manifests" / "registry.ollama.ai" / "library"
    for name, spoil in (("bytes", "unreadable"), ("names", "strange")):
        await store.create(name, files={"m.gguf": digest})
        if spoil == "unreadable":
            other = library / "other" / "latest"
            other.parent.mkdir()
            other.write_bytes(b"{")
        else:
            other = library / name / "no tag"
            other.write_bytes(b"{}")
        assert await store.delete(name) == 0
        assert await store.size(digest) == len(content)
        other.unlink()
    await store.create("last", files={"m.gguf": digest})
    assert await store.delete("last") > len(content)


async def test_blobs_stay_where_the_operator_wants_them_kept(tmp_path: Path, laid: LaidOut, content: bytes) -> None:
    async with running_store(tmp_path, PUNA_NOPRUNE="1") as store:
        digest = await store.put(content)
        await store.create("m", files={"m.gguf": digest})
        before = laid.blob_names()
        assert await store.delete("m") == 0
        assert laid.blob_names() == before


async def test_a_plain_file_can_be_named_built_on_and_deleted(
    store: Store, laid: LaidOut, dense: Path, content: bytes
) -> None:
    plain = laid.directory / "dense.gguf"
    plain.write_bytes(content)
    model = await store.node.model("dense:latest")
    assert await store.read(model.digest, offset=100, max_bytes=50) == content[100:150]  # as other nodes fetch it
    await store.copy("dense", "copied")
    await store.create("built", from_model="dense", system="Built.")
    assert {(await store.node.model(f"{name}:latest")).digest for name in ("copied", "built")} == {model.digest}
    blob = laid.path(model.digest)
    assert blob.stat().st_ino == plain.stat().st_ino  # nothing was copied
    assert await store.delete("built") > 0
    assert plain.exists()
    assert await store.delete("dense") == len(content)
    assert not plain.exists()
    await store.without("dense:latest")
    assert (await store.node.model("copied:latest")).digest == model.digest
    assert blob.read_bytes() == content


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
    runner = await store.node.run(request)
    assert (runner.status.state, runner.status.error.reason) == (cluster_pb2.RUNNER_STATE_ERROR, "bad_model_file")
    assert (laid.directory / "quarantine" / path.name).read_bytes() == spoilt
