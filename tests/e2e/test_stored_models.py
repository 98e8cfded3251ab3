"""Models that are made, shown, copied and forgotten: with the official client, over gRPC, with `puna`."""

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest

from gateway.client import Client
from tests.cluster import Cluster, start_cluster
from tests.e2e.stores import MADE_SYSTEM, PIRATE, QUESTION, names, puna, runs
from tests.waiting import until
from tools.model_zoo import ZOO, build, build_pair, damage

WITHOUT_TOOLS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose models these tests may change."""
    running = start_cluster(tmp_path_factory.mktemp("store") / "home")
    try:
        yield running
    finally:
        running.stop()


def test_a_blob_becomes_a_model_that_is_shown_copied_and_forgotten(
    store: Cluster, client: ollama.Client, demo_file: Path
) -> None:
    digest = client.create_blob(demo_file)
    assert digest == f"sha256:{hashlib.sha256(demo_file.read_bytes()).hexdigest()}"
    steps = list(
        client.create(
            "Team/Pirate:v1",
            files={"demo.gguf": digest},
            system=MADE_SYSTEM,
            parameters={"temperature": 0, "stop": ["matey"], "num_ctx": 512},
            messages=[{"role": "user", "content": "Hello!"}],
            license=["MIT", "Two"],
            template="{{ .System }}{{ .Prompt }}",
            stream=True,
        )
    )
    assert steps[-1].status == "success"
    shown = client.show("team/pirate:v1")
    assert shown.template == "{{ .System }}{{ .Prompt }}"
    assert shown.modified_at is not None
    raw = store.post("/api/show", {"model": "team/pirate:v1"}).json()
    assert raw["system"] == MADE_SYSTEM
    assert raw["messages"] == [{"role": "user", "content": "Hello!"}]
    assert raw["license"] == "MIT\nTwo"
    assert raw["parameters"].splitlines() == [
        "num_ctx                        512",
        'stop                           "matey"',
        "temperature                    0",
    ]
    assert raw["puna"]["template_source"] == "gguf"
    assert "FROM Team/Pirate:v1" in raw["modelfile"]
    assert raw["puna"]["digest"] == digest.removeprefix("sha256:")

    client.copy("team/pirate:v1", "pirate-copy")
    listed = names(client)
    assert listed["Team/Pirate:v1"] == listed["pirate-copy:latest"] != listed["demo:latest"]
    tag = next(one for one in client.list().models if one.model == "pirate-copy:latest").model_dump()
    assert tag["size"] >= demo_file.stat().st_size

    client.delete("team/pirate:v1")
    client.delete("pirate-copy")
    assert names(client).keys() == {"demo:latest"}
    with pytest.raises(ollama.ResponseError, match="model 'pirate-copy' not found") as caught:
        client.delete("pirate-copy")
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match='model "pirate-copy" not found'):
        client.copy("pirate-copy", "x")


@pytest.fixture
def pirate(client: ollama.Client) -> Iterator[str]:
    """A model that speaks as one, and stops at a word."""
    client.create(
        "pirate", from_="demo", system=MADE_SYSTEM, parameters={"temperature": 0, "stop": ["matey"], "seed": 1}
    )
    yield "pirate"
    client.delete("pirate")


@pytest.fixture
def ada(client: ollama.Client) -> Iterator[str]:
    """A model that has already been told a name."""
    client.create(
        "ada",
        from_="demo",
        messages=[
            {"role": "user", "content": "My name is Ada."},
            {"role": "assistant", "content": "Nice to meet you, Ada!"},
        ],
        parameters={"temperature": 0},
    )
    yield "ada"
    client.delete("ada")


def in_three_dialects(store: Cluster, model: str, question: str, system: str = "") -> list[str]:
    """The answer as Ollama's, OpenAI's and Anthropic's clients get it, without any option."""
    turns: list[Any] = [{"role": "system", "content": system}] if system else []
    asked: list[Any] = [{"role": "user", "content": question}]
    with ollama.Client(host=store.url) as first:
        answers = [str(first.chat(model, [*turns, *asked]).message.content)]
    with openai.OpenAI(base_url=store.url + "/v1", api_key="any", max_retries=0) as second:
        done = second.chat.completions.create(model=model, messages=[*turns, *asked])
        answers.append(str(done.choices[0].message.content))
    with anthropic.Anthropic(base_url=store.url, api_key="any", max_retries=0) as third:
        said = third.messages.create(
            model=model, max_tokens=200, messages=asked, system=system or anthropic.omit
        ).content[0]
        answers.append(said.text if said.type == "text" else "")
    return answers


def test_system_text_and_parameters_of_a_made_model_hold_in_every_dialect(store: Cluster, pirate: str) -> None:
    assert in_three_dialects(store, pirate, QUESTION) == [PIRATE] * 3
    assert in_three_dialects(store, pirate, QUESTION, system="Answer in one word.") == ["Endpoint"] * 3
    answer = store.post("/api/generate", {"model": pirate, "prompt": QUESTION, "stream": False}).json()
    assert answer["response"] == PIRATE
    answer = store.post(
        "/api/generate", {"model": pirate, "prompt": QUESTION, "system": "Answer in one word.", "stream": False}
    ).json()
    assert answer["response"] == "Endpoint"
    wider = store.post(
        "/api/generate", {"model": pirate, "prompt": QUESTION, "stream": False, "options": {"stop": ["harbour"]}}
    ).json()
    assert wider["response"] == PIRATE.partition("harbour")[0]


def test_messages_of_a_made_model_stand_before_the_requests_in_every_dialect(store: Cluster, ada: str) -> None:
    assert in_three_dialects(store, ada, "What is my name?") == ["Your name is Ada."] * 3


async def test_they_hold_over_grpc_where_models_are_listed_and_shown_too(store: Cluster, pirate: str) -> None:
    async with Client(f"127.0.0.1:{store.grpc_port}") as puna_client:
        assert (await puna_client.chat(pirate, QUESTION)).text == PIRATE
        listed = await puna_client.list_models()
        assert {route.model.name for route in listed} >= {"demo:latest", "pirate:latest"}
        shown = await puna_client.show_model(pirate)
        assert (shown.model.system, json.loads(shown.model.parameters_json)["stop"]) == (MADE_SYSTEM, ["matey"])
        done = [event async for event in puna_client.load_model(pirate)][-1]
        assert done.WhichOneof("event") == "done"
        assert await puna_client.unload_model(pirate) >= 0


def test_a_model_made_again_at_once_says_what_it_was_made_with_last(store: Cluster, client: ollama.Client) -> None:
    for number in range(3):
        client.create("again", from_="demo", system=f"System {number}.")
        shown = store.post("/api/show", {"model": "again"}).json()
        assert shown["system"] == f"System {number}."
        assert shown["details"]["parent_model"] == "demo:latest"
    client.delete("again")


def test_replicas_of_a_forgotten_model_go_once_no_name_needs_them(
    store: Cluster, client: ollama.Client, tmp_path: Path
) -> None:
    digest = client.create_blob(build("tied", tmp_path))
    client.create("one", files={"tiny.gguf": digest})
    client.copy("one", "two")
    assert client.generate("one", "hi", options={"num_predict": 2}).done
    client.delete("one")
    assert runs(store, "two:latest")
    client.delete("two")
    with pytest.raises(ollama.ResponseError, match="not found"):
        client.generate("two", "hi")


MODELFILE = '''
# A pirate of one's own
FROM ./weights.gguf
SYSTEM """You are a pirate."""
PARAMETER temperature 0
PARAMETER stop matey
LICENSE MIT
'''


def test_the_command_line_makes_shows_copies_and_deletes(store: Cluster, demo_file: Path, tmp_path: Path) -> None:
    shutil.copy(demo_file, tmp_path / "weights.gguf")
    (tmp_path / "Modelfile").write_text(MODELFILE, encoding="utf-8")
    made = puna(store, "create", "mate", directory=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.splitlines()[-1] == "success"
    answer = store.post("/api/generate", {"model": "mate", "prompt": QUESTION, "stream": False})
    assert answer.json()["response"] == PIRATE
    assert puna(store, "show", "mate", "--system").stdout == "You are a pirate.\n"
    table = puna(store, "show", "mate").stdout
    assert 'Parameters\n  stop         "matey"\n  temperature  0\n' in table
    assert json.loads(puna(store, "show", "mate", "--json").stdout)["license"] == "MIT"
    assert puna(store, "show", "mate", "--system", "--license").returncode == 2
    assert puna(store, "cp", "mate", "mate2").stdout == "copied mate to mate2\n"
    (tmp_path / "again").write_text(puna(store, "show", "mate2", "--modelfile").stdout, encoding="utf-8")
    assert puna(store, "create", "mate3", "-f", "again", directory=tmp_path).returncode == 0
    shown = puna(store, "show", "mate3", "--modelfile").stdout
    assert shown.replace("mate3", "mate2") == (tmp_path / "again").read_text(encoding="utf-8")
    removed = puna(store, "rm", "mate", "mate2", "mate3", "mate4")
    assert (removed.returncode, removed.stdout.count("deleted")) == (3, 3)
    assert "model 'mate4' not found" in removed.stderr
    (tmp_path / "Modelfile").write_text("FROM ./nothing.gguf", encoding="utf-8")
    lost = puna(store, "create", "mate", directory=tmp_path)
    assert (lost.returncode, lost.stderr) == (1, "puna: ./nothing.gguf: there is no such file\n")


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({}, 400, "model is required"),
        ({"model": "x"}, 400, "neither 'from' or 'files' was specified"),
        ({"model": "../x", "from": "demo"}, 400, "invalid model name"),
        ({"model": "x", "from": "nothing"}, 404, "model 'nothing' not found"),
        ({"model": "x", "from": "demo", "quantize": "q4_0"}, 501, "quantizing is not supported"),
        ({"model": "x", "files": {"../m.gguf": "sha256:" + "0" * 64}}, 400, "file path must be relative"),
        ({"model": "x", "files": {"m.gguf": "sha256:" + "0" * 64}}, 400, "was not found"),
        ({"model": "x", "files": {"m.gguf": "sha256:zz"}}, 400, "invalid digest format"),
        ({"model": "x", "files": {"m.safetensors": "sha256:" + "0" * 64}}, 400, "only GGUF files"),
        ({"model": "x", "from": "demo", "template": "{{ if }"}, 400, "template error"),
        ({"model": "x", "from": "demo", "template": "{% for m in messages %}"}, 400, ""),
        ({"model": "x", "from": "demo", "parameters": {"temperature": "hot"}}, 400, "must be of type float32"),
        ({"model": "x", "from": "demo", "messages": [{"role": "robot"}]}, 400, "invalid message role"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_happens(
    store: Cluster, body: dict[str, Any], status: int, text: str
) -> None:
    answer = store.post("/api/create", body)
    assert (answer.status_code, text in answer.json()["error"]) == (status, True), answer.text


def test_a_file_that_is_no_model_is_refused(store: Cluster, client: ollama.Client, tmp_path: Path) -> None:
    broken = damage(build("tied", tmp_path), "cut-in-data")
    digest = client.create_blob(broken)
    with pytest.raises(ollama.ResponseError):
        client.create("broken", files={"broken.gguf": digest})
    assert "broken:latest" not in names(client)


def test_blobs_are_known_by_their_digest_alone(store: Cluster) -> None:
    content = os.urandom(3_000_000)
    digest = hashlib.sha256(content).hexdigest()
    url = f"{store.url}/api/blobs/sha256:"
    assert httpx.head(url + digest, timeout=60).status_code == 404
    wrong = httpx.post(url + "0" * 64, content=content, timeout=60)
    assert wrong.status_code == 400
    assert wrong.json()["error"] == f'digest mismatch, expected "sha256:{"0" * 64}", got "sha256:{digest}"'
    assert httpx.head(url + "0" * 64, timeout=60).status_code == 404
    assert httpx.post(url + digest, content=content, timeout=60).status_code == 201
    assert httpx.head(url + digest, timeout=60).status_code == 200
    assert httpx.post(url + digest, content=content, timeout=60).status_code == 200
    assert httpx.post(url + "../../etc/passwd", content=b"x", timeout=60).status_code in (400, 404)
    assert httpx.post(url + digest, content=b"x", headers={"content-encoding": "gzip"}, timeout=60).status_code == 415
    assert httpx.post(f"{store.url}/api/push", json={"model": "demo"}, timeout=60).status_code == 501


def test_show_tells_every_key_and_tensor_when_all_is_asked_for(store: Cluster) -> None:
    short = store.post("/api/show", {"model": "demo"}).json()
    whole = store.post("/api/show", {"model": "demo", "verbose": True}).json()
    assert short["model_info"]["tokenizer.ggml.tokens"] == []
    assert "tensors" not in short
    assert len(whole["model_info"]["tokenizer.ggml.tokens"]) > 100
    assert whole["model_info"].keys() == short["model_info"].keys()
    first = next(row for row in whole["tensors"] if row["name"] == "token_embd.weight")
    width = short["model_info"][f"{short['model_info']['general.architecture']}.embedding_length"]
    assert first["shape"] == [width, len(whole["model_info"]["tokenizer.ggml.tokens"])]
    assert "projector_info" not in whole


def test_a_jinja_template_of_a_made_model_grants_tools(store: Cluster, client: ollama.Client, tmp_path: Path) -> None:
    """Check that capabilities follow from the rendered template: the manifest's, where that is Jinja."""
    bare = build(replace(ZOO["dense"], name="bare", chat_template=WITHOUT_TOOLS), tmp_path)
    client.create("bare", files={bare.name: client.create_blob(bare)})
    client.create("handy", from_="bare", template=ZOO["dense"].chat_template)
    client.create("unhandy", from_="handy", template=WITHOUT_TOOLS)
    weather = {"name": "get_weather", "parameters": {"type": "object", "properties": {"hot": {"type": "boolean"}}}}
    body = {
        "messages": [{"role": "user", "content": "Is it hot?"}],
        "tools": [{"type": "function", "function": weather}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 200,
    }
    for name, has_tools in (("bare", False), ("handy", True), ("unhandy", False)):
        tags = httpx.get(f"{store.url}/api/tags", timeout=60).json()["models"]
        listed = {one["name"]: one["capabilities"] for one in tags}
        shown = store.post("/api/show", {"model": name}).json()["capabilities"]
        object_ = httpx.get(f"{store.url}/v1/models/{name}", timeout=60).json()["puna"]["capabilities"]
        assert listed[f"{name}:latest"] == shown == object_
        assert ("tools" in shown) is has_tools
        answer = store.post("/v1/chat/completions", body | {"model": name})
        if has_tools:
            (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
            assert (call["function"]["name"], call["type"]) == ("get_weather", "function")
        else:
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_capability")
    for name in ("bare", "handy", "unhandy"):
        client.delete(name)


def test_a_model_that_sees_is_made_of_two_files_and_shows_both(
    store: Cluster, client: ollama.Client, tmp_path: Path
) -> None:
    files = {path.name: client.create_blob(path) for path in build_pair("vision", tmp_path)}
    client.create("sees", files=files)
    shown = store.post("/api/show", {"model": "sees"}).json()
    assert "vision" in shown["capabilities"]
    assert shown["projector_info"]["general.architecture"] == "clip"
    client.delete("sees")


async def test_an_upload_that_breaks_off_leaves_nothing(store: Cluster) -> None:
    digest = hashlib.sha256(b"never whole").hexdigest()
    reader, writer = await asyncio.open_connection("127.0.0.1", store.port)
    head = f"POST /api/blobs/sha256:{digest} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n\r\n"
    writer.write(head.encode() + b"x" * 2_000_000)
    await writer.drain()
    directory = store.models / "blobs"
    await until(lambda: any(directory.glob("*partial*")), what="the upload has begun")
    writer.close()
    await writer.wait_closed()
    await until(lambda: not any(directory.glob("*partial*")), what="what had come is gone")
    assert not (directory / f"sha256-{digest}").exists()
    assert not await reader.read()
