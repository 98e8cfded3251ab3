"""An existing store as a node shows and serves it: nothing is copied, nothing bad is loaded."""

import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from common.errors import BadModelFile
from common.spec.layout import FlashAttention, Layout
from protos import cluster_pb2
from runner.core.model.model_files import AdapterFile, ModelFiles
from tests.engines.reference import ReferenceEngine
from tests.integration.host.node import SMALL, Inventory, Node, running_node
from tests.integration.host.store_layout import LaidOut
from tests.integration.host.store_node import PROMPT, said, why_not
from tests.integration.runner.contract import driven
from tests.integration.runner.split import split_gguf
from tools.model_zoo import build_adapter, build_pair

LAYOUT = Layout(slots=1, context_tokens=512, batch_tokens=64, threads=1, flash_attention=FlashAttention.OFF)


@pytest.fixture
def store(tmp_path: Path) -> LaidOut:
    return LaidOut(directory=tmp_path / "models")


@pytest.fixture
async def node(tmp_path: Path, store: LaidOut) -> AsyncIterator[Node]:
    store.directory.mkdir(exist_ok=True)
    async with running_node(tmp_path, store.directory) as node:
        yield node


async def changed(node: Node, name: str, words: str) -> cluster_pb2.Model:
    """The model once its error has these words."""

    def matches(inventory: Inventory) -> bool:
        return any(model.name == name and words in model.error for node in inventory.nodes for model in node.models)

    found = await node.inventory(matches)
    return next(model for node in found.nodes for model in node.models if model.name == name)


async def test_a_manifest_is_a_model_with_all_that_it_says(node: Node, store: LaidOut, content: bytes) -> None:
    parameters, messages = {"stop": ["<end>"], "temperature": 0.25}, [{"role": "user", "content": "Hello"}]
    _, manifest = store.library(
        "told",
        store.layer("model", content, **{"from": "base:latest"}),
        store.layer("template", b"{{ .Prompt }}"),
        store.layer("system", b"Be brief."),
        store.layer("params", orjson.dumps(parameters)),
        store.layer("messages", orjson.dumps(messages)),
        store.layer("license", b"MIT"),
        store.layer("license", b"Apache"),
        store.layer("application/vnd.other.thing", b"kept and ignored"),
        tag="8b",
        config={"parser": "qwen3"},
    )
    model = await node.model("told:8b")
    assert model.error == ""
    assert (model.digest, model.manifest_digest) == (hashlib.sha256(content).hexdigest(), manifest)
    assert (model.system, model.template, list(model.licenses)) == ("Be brief.", "{{ .Prompt }}", ["MIT", "Apache"])
    assert orjson.loads(model.parameters_json) == parameters
    assert orjson.loads(model.messages_json) == messages
    assert (model.parser, model.parent_model) == ("qwen3", "base:latest")
    assert (model.size_bytes, list(model.blob_digests)) == (len(content), [model.digest])
    assert model.total_size_bytes > model.size_bytes
    assert model.description.architecture == "llama"


@pytest.mark.behaviour("B-153")
async def test_names_of_a_store_are_served_as_the_reference_says_and_nothing_is_copied(
    tmp_path: Path, node: Node, store: LaidOut, dense: Path, content: bytes
) -> None:
    adapter = build_adapter(dense, tmp_path)
    parts = split_gguf(dense, tmp_path, parts=3)
    store.library("whole", store.layer("model", content))
    # Parts in another order than theirs: the keys tell.
    store.library("split", *(store.layer("model", part.read_bytes()) for part in (parts[2], parts[0], parts[1])))
    store.manifest("hf.co/me/tuned/Q8", store.layer("model", content), store.layer("adapter", adapter.read_bytes()))
    scaled = {"annotations": {"puna.adapter.scale": "0.4"}}
    store.library("half", store.layer("model", content), store.layer("adapter", adapter.read_bytes(), **scaled))
    expected = {}
    for name, files in (
        ("whole:latest", ()),
        ("split:latest", ()),
        ("hf.co/me/tuned:Q8", (AdapterFile(path=adapter),)),
        ("half:latest", (AdapterFile(path=adapter, scale=0.4),)),
    ):
        with driven(ReferenceEngine(ModelFiles(model=dense, adapters=files), LAYOUT)) as driver:
            expected[name] = driver.ask(PROMPT, max_tokens=16).ids
    before = store.blob_names()
    assert {name: await said(node, name) for name in expected} == expected
    assert len(set(map(tuple, expected.values()))) == 3
    assert store.unchanged()
    assert store.blob_names() == before
    models = [await node.model(name) for name in expected]
    assert len({model.digest for model in models}) == 4
    assert len(models[1].blob_digests) == 3


async def test_two_names_of_the_same_weights_have_one_digest(node: Node, store: LaidOut, content: bytes) -> None:
    store.library("one", store.layer("model", content), store.layer("system", b"One."))
    store.library("two", store.layer("model", content), store.layer("system", b"Two."))
    one, two = await node.model("one:latest"), await node.model("two:latest")
    assert one.digest == two.digest
    assert one.manifest_digest != two.manifest_digest
    assert one.system != two.system


async def test_a_jinja_template_of_a_manifest_grants_what_it_renders(
    node: Node, store: LaidOut, content: bytes
) -> None:
    templates = {
        "go": (b"{{ .Tools }}{{ .Prompt }}", {"tools"}),  # the file's own template is rendered
        "bare": (b"{% for m in messages %}{{ m.content }}{% endfor %}", set()),
        "both": (b"{% if tools %}{% endif %}{% if enable_thinking %}{% endif %}", {"tools", "thinking"}),
    }
    for name, (template, _) in templates.items():
        store.library(name, store.layer("model", content), store.layer("template", template))
    for name, (_, granted) in templates.items():
        row = await node.model(f"{name}:latest")
        assert set(row.description.capabilities) == {"completion", "insert"} | granted, name


async def test_a_projector_layer_makes_a_model_see(tmp_path: Path, node: Node, store: LaidOut) -> None:
    model, projector = build_pair("vision", tmp_path)
    store.library("eyes", store.layer("model", model.read_bytes()), store.layer("projector", projector.read_bytes()))
    row = await node.model("eyes:latest")
    assert row.error == ""
    assert "vision" in row.description.capabilities
    assert row.projector_digest == hashlib.sha256(projector.read_bytes()).hexdigest()
    assert row.projector_size_bytes == projector.stat().st_size
    assert list(row.blob_digests) == [row.digest, row.projector_digest]
    layout = cluster_pb2.Layout()
    layout.CopyFrom(SMALL)
    layout.projector_digest = row.projector_digest
    record = await node.run(await node.start_request("eyes:latest", layout=layout))
    assert record.status.state == cluster_pb2.RUNNER_STATE_READY, record.status.error


async def test_what_cannot_be_used_is_shown_with_the_reason(
    tmp_path: Path, node: Node, store: LaidOut, dense: Path, content: bytes
) -> None:
    parts = split_gguf(dense, tmp_path, parts=2)
    missing = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'ab' * 32}", "size": 5}
    weights = store.layer("model", content)
    store.library("nothing", store.layer("template", b"x"))
    store.library("tensors", {**weights, "mediaType": "application/vnd.ollama.image.tensor"})
    store.library("format", weights, config={"model_format": "safetensors"})
    store.library("gone", missing)
    store.library("part", store.layer("model", parts[0].read_bytes()))
    store.library("twice", weights, store.layer("model", parts[0].read_bytes()))
    store.library("notes", store.layer("model", b"GGUF is what this is not"))
    store.library("wrong-adapter", weights, store.layer("adapter", content))
    store.library("wrong-size", {**weights, "size": len(content) + 1})
    broken = store.directory / "manifests" / "registry.ollama.ai" / "library" / "broken" / "latest"
    broken.parent.mkdir()
    broken.write_bytes(b"{")
    for name, words in (
        ("nothing", "names no model"),
        ("tensors", "safetensors"),
        ("format", "safetensors"),
        ("gone", f"blob sha256:{'ab' * 32} is missing"),
        ("part", "one of 2 files"),
        ("twice", "whole model"),
        ("notes", "GGUF version"),
        ("wrong-adapter", "is no adapter"),
        ("wrong-size", "its manifest says"),
        ("broken", "no JSON"),
    ):
        model = await changed(node, f"{name}:latest", words)
        assert not model.HasField("description")


async def test_names_and_files_of_others_are_left_alone(node: Node, store: LaidOut, content: bytes) -> None:
    weights = store.layer("model", content)
    blobs = store.directory / "blobs"
    others = [
        blobs / f"sha256:{'cd' * 32}",
        blobs / f"sha256-{'ef' * 32}-partial",
        blobs / f"sha256-{'ef' * 32}-partial-0",
        store.directory / "manifests" / "registry.ollama.ai" / "library" / "x" / ".DS_Store",
    ]
    others[-1].parent.mkdir(parents=True)
    for path in others:
        path.write_bytes(b"of others")
    outside = store.directory.parent / "outside"
    outside.write_bytes(content)
    (store.directory / "manifests" / "registry.ollama.ai" / "library" / "linked").symlink_to(store.directory.parent)
    store.library("good", weights)
    assert (await node.model("good:latest")).error == ""
    found = await node.inventory(lambda inventory: bool(inventory.nodes))
    assert [model.name for model in found.nodes[0].models] == ["good:latest"]
    assert all(path.read_bytes() == b"of others" for path in others)


async def test_a_blob_that_is_a_link_is_not_loaded(node: Node, store: LaidOut, dense: Path, content: bytes) -> None:
    digest = hashlib.sha256(content).hexdigest()
    store.path(digest).parent.mkdir(parents=True)
    store.path(digest).symlink_to(dense)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    store.library("linked", {**layer, "size": len(content)})
    assert "is missing" in (await changed(node, "linked:latest", "missing")).error


@pytest.mark.behaviour("B-83")
@pytest.mark.parametrize("damage", ["flipped", "in place"])
async def test_a_blob_with_another_content_is_never_loaded_and_put_away(
    tmp_path: Path, store: LaidOut, content: bytes, damage: str
) -> None:
    spoilt = bytearray(content)
    layer = store.layer("model", content)
    digest = str(layer["digest"]).removeprefix("sha256:")
    path = store.path(digest)
    spoilt[-1] ^= 1  # of a weight: no look at the header finds it
    if damage == "flipped":
        path.chmod(0o644)
        path.write_bytes(spoilt)
    store.library("spoilt", layer)
    async with running_node(tmp_path, store.directory) as node:
        if damage == "in place":  # verified already, then changed without a new name
            await node.host.event("blob.verified")
            path.chmod(0o644)
            path.write_bytes(spoilt)
        else:
            request = await node.start_request("spoilt:latest", model_digest=digest)
            assert re.search(r"digest mismatch|quarantine|missing|no model file", await why_not(node, request))
        event = await node.host.event("blob.mismatch")
        assert event["digest"] == digest
        assert event["found"] == hashlib.sha256(spoilt).hexdigest()
        model = await changed(node, "spoilt:latest", "quarantine")
        assert digest in model.error
        assert not path.exists()
        assert (store.directory / "quarantine" / f"sha256-{digest}").read_bytes() == spoilt
        with pytest.raises(BadModelFile):
            await node.run(await node.start_request("spoilt:latest", model_digest=digest))
