"""Models made in the store of a real node: of files, of other models, and what makes none."""

import hashlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from common.errors import InvalidRequest, ModelNotFound
from tests.integration.host.store_layout import LaidOut
from tests.integration.host.store_node import Store
from tests.integration.runner.split import split_gguf
from tools.model_zoo import build_adapter, build_pair

BAD_NAMES = ("../x", "a/../b", "..", "a%2fb", "C:\\x", "//a", "\u0430b", "a\0b", "x" * 10_240, "", ".x", "a/b/c/d")


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
